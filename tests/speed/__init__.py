"""Tests of the speed check, most of them with simulated clocks and devices."""

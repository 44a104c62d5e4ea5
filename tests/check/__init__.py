"""The tests of amp.check: its report, its failure, harm, and what it says of mistakes in models and loops."""

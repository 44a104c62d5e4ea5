"""One run of pytest: from its options to its exit status and the files that it writes.

Options and collected tests go in; observations, problems and one verdict come out. ``pytest_amp.plugin`` calls this
package. A check imports only its targets and the role of a worker from it.
"""

"""``python -m tools.fingerprints [--check | --page] [--entry PATTERN] [DEVICE ...]``: see ``update``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_amp.devices.probe import probe_in_child
from pytest_amp.fingerprint import data
from pytest_amp.fingerprint.sweep import NoEntries
from tools.fingerprints import page, update


def main() -> int:
    """Run the command line; exit with 2 and one line if a device does not compute or torch's tests are missing."""
    parser = argparse.ArgumentParser(prog="python -m tools.fingerprints", description=update.__doc__)
    parser.add_argument("device", nargs="*", default=update.DEVICES, help=f"default: {' '.join(update.DEVICES)}")
    parser.add_argument("--check", action="store_true", help="change no file; end with 1 where something differs")
    parser.add_argument("--page", action="store_true", help="print the tables of docs/reference/fingerprint.md")
    parser.add_argument("--file", type=Path, help="another file than the package's")
    parser.add_argument(
        "--entry", action="append", help="these entries only, as a shell pattern, of a release that the file has"
    )
    parser.add_argument(
        "--allow-lost",
        dest="lost",
        action="store_const",
        const=update.Lost.FORGET,
        default=update.Lost.REFUSE,
        help="write the file, although something it knows cannot be observed now",
    )
    parser.add_argument(
        "--keep-lost",
        dest="lost",
        action="store_const",
        const=update.Lost.KEEP,
        help="write what the file knows of an entry that cannot be observed now",
    )
    options = parser.parse_args()
    if options.page:
        sys.stdout.write(page.as_markdown(data.load(options.file)) + "\n")
        return 0
    real = [name for name in options.device if name not in update.DEVICES]
    for name, answer in probe_in_child(real).items() if real else ():
        if not answer.works:
            parser.exit(2, f"{parser.prog}: {name} does not compute here: {answer.reason}\n")
    try:
        return update.main(
            options.device,
            path=options.file,
            check=options.check,
            entries=options.entry or ("*",),
            lost=options.lost,
        )
    except NoEntries as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())

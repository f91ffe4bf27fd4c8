"""Run a command by its name: `python -m espnet_distopt status exp/asr_*`."""

from espnet_distopt.bin.distopt import main

if __name__ == "__main__":
    main()

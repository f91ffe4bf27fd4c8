"""Decode speech with ESPnet's own `espnet2.bin.asr_inference`.

It takes the same options, and starts in a third of the time without asking the network.
"""

from espnet_distopt.espnet.models.quick_import import importing_espnet

with importing_espnet():
    from espnet2.bin.asr_inference import main

if __name__ == "__main__":
    main()

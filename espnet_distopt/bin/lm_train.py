"""Train a language model with ESPnet's own `espnet2.bin.lm_train`.

It takes the same options, and starts in a third of the time without asking the network.
"""

from espnet_distopt.espnet.models.quick_import import importing_espnet

with importing_espnet():
    from espnet2.bin.lm_train import main

if __name__ == "__main__":
    main()

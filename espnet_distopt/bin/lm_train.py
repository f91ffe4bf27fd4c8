"""Train a language model as ESPnet's own `espnet2.bin.lm_train` does.

It takes the same options. As any training of this package it is the only one in its
directory, goes on after a kill, and stops when it is told to. It goes on only with a
training of the same model, tokens and text.
"""

from espnet_distopt.espnet.training.command import training_command

TASK = "espnet_distopt.espnet.training.tasks:DistoptLMTask"

get_parser, main = training_command(TASK)

if __name__ == "__main__":
    main()

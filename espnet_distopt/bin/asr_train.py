"""Train an ESPnet ASR model, optionally by one of the algorithms (`--distopt`).

It takes every option of `espnet2.bin.asr_train`. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    python -m espnet_distopt.bin.launch --nproc 2 -m espnet_distopt.bin.asr_train ...
"""

from espnet_distopt.espnet.training.command import training_command

TASK = "espnet_distopt.espnet.training.tasks:DistoptASRTask"

get_parser, main = training_command(TASK)

if __name__ == "__main__":
    main()

"""Train a hybrid system's acoustic model, optionally by an algorithm (`--distopt`).

It takes every option of `espnet2.bin.asr_train`. The data are named `speech` (features,
type `kaldi_ark`) and `states` (the pdf of each frame, from `gmm_train`, type
`kaldi_ark`); `--input_size` is the number of dimensions of the features, and
`--token_list` names the pdfs. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    distopt launch --nproc 2 -m espnet_distopt.recipes.commands.hybrid_train ...
"""

from espnet_distopt.espnet.training.command import training_command

TASK = "espnet_distopt.recipes.models.hybrid.task:DistoptHybridTask"

get_parser, main = training_command(TASK)

if __name__ == "__main__":
    main()

"""Train a recognizer of text lines (OCR), optionally by an algorithm (`--distopt`).

It takes every option of `espnet2.bin.asr_train`, and `--line_augmentation`. The data
are named `speech` (type `kaldi_ark`, or `line_image_32` for images of height 32) and
`text`; `--input_size` is the height. For several learners it is started by
`espnet_distopt.bin.launch`, by torchrun, or by srun in a Slurm job, whose tasks are
then the learners:

    distopt launch --nproc 2 -m espnet_distopt.recipes.commands.ocr_train ...
"""

from espnet_distopt.espnet.training.command import training_command

TASK = "espnet_distopt.recipes.models.ocr.task:DistoptOCRTask"

get_parser, main = training_command(TASK)

if __name__ == "__main__":
    main()

"""The acoustic model of a hybrid system: posteriors of HMM states, frame by frame."""

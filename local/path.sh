# shellcheck shell=bash
# The environment of every recipe. Source me with MAIN_ROOT set to the repository.
# Which Python runs: $PYTHON if set, else the repository's .venv if `make setup` made
# one, else python3 of the active environment.

if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
elif [ -x "$MAIN_ROOT/.venv/bin/python" ]; then
    python=$MAIN_ROOT/.venv/bin/python
else
    python=python3
fi
export python

export PYTHONPATH="$MAIN_ROOT${PYTHONPATH:+:$PYTHONPATH}"
# Learners share the cores: more threads a process would only fight.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# torch warns whenever a wait for another learner takes a second: that is no news.
export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-ERROR}"
# Sorting must agree between sort, Python and Kaldi's conventions.
export LC_ALL=C
export PYTHONIOENCODING=UTF-8
# ESPnet 202511 reads an empty list of devices as a number and dies.
if [ -z "${CUDA_VISIBLE_DEVICES-unset}" ]; then
    unset CUDA_VISIBLE_DEVICES
fi

# shellcheck shell=bash
# This file sets the environment of every recipe. A recipe sources it with MAIN_ROOT set
# to the repository. Python is $PYTHON if that is set, otherwise the repository's .venv if
# `make setup` has made one, otherwise python3 of the active environment.

if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
elif [ -x "$MAIN_ROOT/.venv/bin/python" ]; then
    python=$MAIN_ROOT/.venv/bin/python
else
    python=python3
fi
export python

export PYTHONPATH="$MAIN_ROOT${PYTHONPATH:+:$PYTHONPATH}"
# Learners share the cores, so more threads per process would only compete for them.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Where a learner is lost, torch logs a C++ stack for each of the connections that are
# severed; the error that names the learner says more.
export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-ERROR}"
# The order of `sort` must be that of Python and of Kaldi.
export LC_ALL=C
export PYTHONIOENCODING=UTF-8
# ESPnet 202511 reads the list of devices as a number, and fails if the list is empty.
if [ -z "${CUDA_VISIBLE_DEVICES-unset}" ]; then
    unset CUDA_VISIBLE_DEVICES
fi

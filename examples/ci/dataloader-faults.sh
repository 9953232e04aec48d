#!/bin/bash
# Fault tests of datasets, for Jenkins and all other runners. Copy this file; it needs nothing else
# but tests that use fault_check, and bash. In a Jenkinsfile: sh 'bash dataloader-faults.sh push'
#
# usage: bash dataloader-faults.sh push|nightly|gpu
#
# The reports are in reports/: a page, JSON, and JUnit for the runner to show (in Jenkins: junit
# 'reports/*.xml', and archiveArtifacts 'reports/*').
set -euo pipefail
job=${1:-}
case $job in
push | nightly | gpu) ;;
*)
  echo "'$job' is no job: push, nightly or gpu" >&2
  exit 2
  ;;
esac

if [ "$job" = gpu ]; then
  python -m pip install torch
else
  # From this index come builds for CPUs, which are a tenth as large as those with CUDA.
  python -m pip install torch --index-url https://download.pytorch.org/whl/cpu
fi
python -m pip install pytest-dataloader-faults pytest-xdist
if [ -f requirements.txt ]; then python -m pip install -r requirements.txt; fi
# A pyproject.toml may also be there for the settings of tools only.
if grep -Eqs '^\[(project|build-system)\]' pyproject.toml || [ -f setup.py ]; then
  python -m pip install .
fi

# Where the kernel refuses, this fails; without it, pytest would skip everything and be green.
python -c "from pytest_dataloader_faults import run_trial; run_trial(lambda: [0])"
reports=(--dataloader-faults-report="reports/$job.html" --junitxml="reports/$job.xml")
reports+=(--dataloader-faults-report="reports/$job.json")
case $job in
push)
  python -m pytest -m "dataloader_faults and not gpu and not slow" -n 2 \
    --dataloader-faults-only=quick "${reports[@]}"
  ;;
nightly)
  # All checks, and searches, which draw something else each night. Keep the folder .hypothesis:
  # what was found last night is tried first tonight.
  python -m pytest -m "dataloader_faults and not gpu" -n 2 \
    --hypothesis-profile=default "${reports[@]}"
  ;;
gpu)
  # A separate session: after a test has used CUDA in pytest's process, trials cannot.
  python -m pytest -m "dataloader_faults and gpu" --dataloader-faults-require-gpu "${reports[@]}"
  ;;
esac

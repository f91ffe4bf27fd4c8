# shellcheck shell=bash
# Sourced by every script of this recipe.
MAIN_ROOT=$(cd ../../.. && pwd)
# shellcheck source=../../../local/path.sh
. "$MAIN_ROOT/local/path.sh"

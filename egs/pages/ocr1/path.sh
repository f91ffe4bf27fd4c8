# shellcheck shell=bash
# Every script of this recipe sources this file.
MAIN_ROOT=$(cd ../../.. && pwd)
# shellcheck source=../../../local/path.sh
. "$MAIN_ROOT/local/path.sh"

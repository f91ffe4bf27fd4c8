# shellcheck shell=bash
# This file reads `--name value` from the command line into variables of the script that
# sources it. The script's options are the assignments between its lines `# options` and
# `# end of options`, and their comments are the text of --help:
#     # options
#     stage=1    # first stage to run
#     # end of options
#     . parse_options.sh
# If a default is a whole number, the value must be one, too; if it is true or false, the
# value must be true or false.

options_of=${BASH_SOURCE[1]}
option_lines=$(sed -n '/^# options$/,/^# end of options$/p' "$options_of")
option_names=$(sed -nE 's/^([a-z][a-z0-9_]*)=.*/\1/p' <<<"$option_lines")

option_error() {
    echo "error: ${options_of##*/}: $1 (see --help)" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        -h | --help)
            echo "Options of ${options_of##*/}, with their defaults:"
            # Options given before --help, as a recipe's own, are its defaults.
            while IFS= read -r line; do
                option=${line%%=*} text=
                [[ $line != *"# "* ]] || text="# ${line#*"# "}"
                value=${!option}
                [[ $value != *[[:space:]]* ]] || value="\"$value\""
                printf '  --%-27s %s\n' "$option $value" "$text"
            done < <(grep -E '^[a-z][a-z0-9_]*=' <<<"$option_lines")
            exit 0
            ;;
        --?*) ;;
        *) option_error "unexpected argument '$1', expected --name value" ;;
    esac
    option=${1#--}
    option=${option//-/_}
    grep -qxF -- "$option" <<<"$option_names" || option_error "unknown option $1"
    [ $# -ge 2 ] || option_error "$1 needs a value"
    case ${!option} in
        true | false)
            [[ $2 == true || $2 == false ]] ||
                option_error "$1 must be true or false, not '$2'"
            ;;
        '' | *[!0-9]*) ;;
        *) [[ $2 =~ ^[0-9]+$ ]] || option_error "$1 must be a whole number, not '$2'" ;;
    esac
    printf -v "$option" '%s' "$2"
    shift 2
done
unset option option_lines option_names options_of

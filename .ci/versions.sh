#!/usr/bin/env bash
# Installs coterie with the lowest or the newest versions that pyproject.toml files allow, trains a
# smoke run of every paper and reads the W&B files back. Of torch there is the tested version alone.
# Use: .ci/versions.sh lowest|newest [FOLDER]; FOLDER keeps the environment and the runs.
set -euo pipefail
cd "$(dirname "$0")/.."
which=${1:?lowest or newest}
folder=${2:-$(mktemp -d)}
python=$folder/bin/python
reader=$PWD/.venv/bin/python # W&B's own reader came with 0.29

"${PYTHON:-python3}" -m venv "$folder"
"$python" -m pip install -qq -U pip
torch=$(grep '^torch==' constraints.txt)
packages=("./shared[datasets]" ./packages/*/)
case $which in
lowest) "$python" -m pip install -qq --no-compile -c constraints-lowest.txt "$torch" "${packages[@]}" ;;
newest) "$python" -m pip install -qq --no-compile -U --upgrade-strategy eager "$torch" "${packages[@]}" ;;
*) echo "say: .ci/versions.sh lowest|newest [FOLDER]" >&2; exit 2 ;;
esac
named=$(grep -v '^#' constraints-lowest.txt | cut -d= -f1 | paste -sd'|')
"$python" -m pip list --format=freeze | grep -Ei "^(torch|$named)==" | paste -sd' '

failed=0
for paper in f3crec pplr mtal page pf-msmtrec; do
    out=$folder/runs
    "$folder/bin/coterie" train "$paper" --preset smoke --out "$out" --run.name smoke \
        > "$folder/$paper.log" 2>&1 || { echo "$paper: failed"; tail -3 "$folder/$paper.log"; failed=1; continue; }
    rounds=$(($(wc -l < "$out/$paper/smoke/metrics.csv") - 1))
    file=$(echo "$out/$paper"/smoke/wandb/offline-run-*/run-*.wandb)
    logged=$("$reader" -m wandb leet inspect --json "$file" | grep -c '"type":"history"' || true)
    echo "$paper: $rounds rounds, $logged of them in the W&B file"
    [ "$rounds" -gt 0 ] && [ "$rounds" = "$logged" ] || failed=1
    ! grep -i "warning\|W&B logging is off" "$folder/$paper.log" || failed=1
done
"$folder/bin/coterie" data sample --out "$folder/sample" > "$folder/export.log" 2>&1 || failed=1
count='import sys, datasets; print("export:", len(datasets.load_from_disk(sys.argv[1])), "rows")'
"$python" -c "$count" "$folder/sample" || failed=1
exit $failed

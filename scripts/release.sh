#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make release`: checks the commit that is checked out with `ansible-test sanity`, builds its archive, checks that with galaxy-importer, writes its bill of
# materials and, with KEY, a signature that `ansible-galaxy collection verify --signature` checks. All of it goes to $OUT (dist by default). It uploads nothing.
# `scripts/release.sh test-ansible`: runs the sessions of noxfile.py, or those in $SESSIONS.
set -eu

cd "$(dirname "$0")/.."
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
out=${OUT:-$PWD/dist}
PATH=$PWD/.venv/bin:$PATH
export PATH
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

. scripts/tools.sh
if [ "${1:-}" = test-ansible ]; then
    set -f
    # shellcheck disable=SC2086 # names of sessions
    exec "$tools/bin/nox" ${SESSIONS:+-s $SESSIONS}
fi

[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and the archive is made of the commit: commit or remove them."
echo "==> ansible-test sanity, some minutes"
python scripts/sanity.py || die "ansible-test sanity failed, so there is no archive: correct what it names above."

# With this time, two builds of a commit have the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/source" "$work/importer"
git archive HEAD | tar -x -C "$work/source"
ansible-galaxy collection build "$work/source" --output-path "$work/built" >/dev/null
archive=$(python scripts/release.py archive "$work"/built/*.tar.gz "$out")
echo "$archive"

# This script judges the log, because galaxy-importer exits with 0 after a warning, and after an error as well. It stops ansible-lint after 180 s.
# ansible-lint finds the collections that ours depends on as a user has them. A server without them warns that it does not know kubernetes.core.
mkdir "$work/dependencies"
ln -s "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ansible_collections" "$work/dependencies/"
echo "==> galaxy-importer, some minutes"
cat >"$work/importer.cfg" <<'CFG'
[galaxy-importer]
check_required_tags = true
run_ansible_lint = true
run_ansible_test = false
CFG
log=$out/galaxy-importer.log
(
    cd "$work/importer"
    PATH="$tools/bin:$PATH" HOME="$work" PYTHONPATH="$work/dependencies" GALAXY_IMPORTER_CONFIG="$work/importer.cfg" python -m galaxy_importer.main "$archive"
) >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "galaxy-importer failed: see $log."; }
if grep -E '^(WARNING|ERROR|CRITICAL)' "$log" >&2; then
    die "galaxy-importer has warnings or errors: see $log."
fi
grep -q '^Importer processing completed successfully' "$log" || die "galaxy-importer did not end: see $log."
echo "no warnings: $log"

echo "==> Bill of materials"
sbom=${archive%.tar.gz}.cdx.json
printf '[project]\nname = "llama_cpp.cluster"\nversion = "%s"\nlicense = "GPL-3.0-or-later"\n' "$(sed -n 's/^version: //p' galaxy.yml)" >"$work/pyproject.toml"
python scripts/release.py requirements |
    "$tools/bin/cyclonedx-py" requirements --output-reproducible --pyproject "$work/pyproject.toml" --output-file "$sbom" -
echo "$sbom"

echo "==> Execution environment: the context, and what ansible-builder finds in the collection; no image is built"
"$tools/bin/ansible-builder" create --file execution-environment.yml --context "$work/context" >/dev/null
grep -q llama_cpp.cluster "$work/context/_build/requirements.yml" || die "the context of the execution environment lacks the collection."
ANSIBLE_COLLECTIONS_PATH=$work/collections ansible-galaxy collection install "$archive" --offline --no-deps -p "$work/collections" >/dev/null
"$tools/bin/ansible-builder" introspect "$work/collections" >"$work/needs"
for need in jmespath openssh-client; do
    grep -q "$need" "$work/needs" || die "ansible-builder does not find that the collection needs $need: see meta/execution-environment.yml."
done

# The signature covers MANIFEST.json, which has the digest of the list of all files.
signature=${archive%.tar.gz}.asc
rm -f "$signature"
if [ -n "${KEY:-}" ]; then
    gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output "$signature" "$out/MANIFEST.json"
    echo "$signature"
else
    echo "Not signed: KEY=<a key of gpg's> signs it."
fi
rm "$out/MANIFEST.json"
(cd "$out" && for file in "${archive##*/}" "${sbom##*/}"; do sha256sum "$file"; done >SHA256SUMS && cat SHA256SUMS)

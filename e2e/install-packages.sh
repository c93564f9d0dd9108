#!/usr/bin/env bash
# Debian's packages that real nodes need; libnuma1, which vLLM needs on a CPU; the browser that tests of `rljob ui` drive; and
# Prometheus, which scrapes a job; bubblewrap, by which sandboxes are made.
# Quick where all are installed; needs root and apt elsewhere.
set -euo pipefail
packages=(containerd runc containernetworking-plugins iptables conntrack iproute2 debootstrap util-linux libnuma1 fonts-dejavu-core prometheus bubblewrap libseccomp2)
# GitHub's runners have Google's, and Ubuntu has Chromium as a snap only.
command -v google-chrome >/dev/null || packages+=(chromium)
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
echo "installing ${missing[*]}"
# Nodes start a containerd of their own, tests a Prometheus: none of the machine's is to be started here.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

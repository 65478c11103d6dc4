#!/bin/sh
# Copies roce from this folder to PREFIX (~/.local unless given): ./install.sh [PREFIX]
set -eu
prefix=${1:-$HOME/.local}
cd "$(dirname "$0")"
mkdir -p "$prefix"
cp -R bin lib include share "$prefix/"
echo "roce is in $prefix/bin; try: $prefix/bin/roce doctor"

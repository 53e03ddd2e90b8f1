# The one image of ours: operator, agent, and the runtime that is copied into engine pods. Engine images are the user's.
#   docker build -t ebbtide .
# BASE is any image with glibc, /bin/sh and python3 >= 3.11 with venv. PIP_* configure pip as they do outside.
ARG BASE=python:3.11-slim-bookworm

# The library goes into images that we do not know: zig brings the symbols of an old glibc and a static C++ library.
FROM ${BASE} AS native
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX
COPY csrc /csrc
# One step, and the compiler is gone after it: it is 500 MB.
RUN python3 -m venv /zig && /zig/bin/pip install --no-cache-dir --no-compile --quiet ziglang==0.17.1 \
 && case "$(uname -m)" in x86_64) flags=-mcrc32 ;; *) flags= ;; esac \
 && /zig/bin/python -m ziglang c++ -target "$(uname -m)-linux-gnu.2.28" $flags -std=c++17 -O2 -DNDEBUG -fPIC -pthread \
      -fvisibility=hidden -fvisibility-inlines-hidden -I/csrc/include -I/csrc/src -shared -s \
      -Wl,-soname,libebbtide.so -o /libebbtide.so /csrc/src/*.cpp \
 && rm -rf /zig /root/.cache
# Newer symbols would fail on the user's image only, and late.
RUN python3 -c "import re; text = open('/libebbtide.so', 'rb').read(); \
found = {tuple(map(int, each)) for each in re.findall(rb'GLIBC_(\d+)\.(\d+)', text)}; \
assert max(found) <= (2, 28), sorted(found)"

FROM ${BASE} AS build
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_NO_INDEX
WORKDIR /src
RUN python3 -m venv /opt/ebbtide
# Dependencies first: they change less often than we do.
COPY pyproject.toml ./
RUN python3 -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [project['optional-dependencies'][name] for name in ('operator', 'runtime', 'cluster')]; \
print('\n'.join([*project['dependencies'], *sum(extras, [])]))" > /requirements.txt \
 && /opt/ebbtide/bin/pip install --no-cache-dir --quiet -r /requirements.txt
COPY README.md LICENSE ./
COPY crds crds
COPY operator operator
COPY runtime runtime
COPY --from=native /libebbtide.so runtime/ebbtide_runtime/native/libebbtide.so
RUN /opt/ebbtide/bin/pip wheel --no-cache-dir --quiet --no-deps --wheel-dir /wheel . \
 && /opt/ebbtide/bin/pip install --no-cache-dir --quiet --no-deps /wheel/*.whl \
 && /opt/ebbtide/bin/pip install --no-cache-dir --quiet --no-deps --target /opt/ebbtide/payload /wheel/*.whl \
 && rm -rf /opt/ebbtide/payload/bin /opt/ebbtide/payload/ebbtide /opt/ebbtide/payload/ebbtide_operator \
 && printf '#!/bin/sh\n# Copy what engine containers need to the folder $1.\nset -eu\nmkdir -p "$1"\nexec cp -R /opt/ebbtide/payload/. "$1"\n' \
      > /opt/ebbtide/copy-payload && chmod 755 /opt/ebbtide/copy-payload
RUN mkdir -p /usr/share/doc/ebbtide \
 && /opt/ebbtide/bin/pip uninstall --quiet --yes pip setuptools \
 && python3 -m venv /sbom && /sbom/bin/pip install --no-cache-dir --quiet cyclonedx-bom==7.5.0 \
 && /sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
      --output-file /usr/share/doc/ebbtide/sbom.json /opt/ebbtide/bin/python \
 && rm -rf /sbom && cp LICENSE /usr/share/doc/ebbtide/

FROM ${BASE}
LABEL org.opencontainers.image.title=ebbtide \
      org.opencontainers.image.description="Lend, tier and pair the GPU memory of vLLM servers" \
      org.opencontainers.image.licenses=Apache-2.0
RUN echo 'ebbtide:x:65532:65532:ebbtide:/:/usr/sbin/nologin' >> /etc/passwd && echo 'ebbtide:x:65532:' >> /etc/group
COPY --from=build /opt/ebbtide /opt/ebbtide
COPY --from=build /usr/share/doc/ebbtide /usr/share/doc/ebbtide
# Nothing is written at run time, so a read-only root file system works.
ENV PATH=/opt/ebbtide/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
CMD ["/opt/ebbtide/bin/python", "-m", "ebbtide_operator.kube"]

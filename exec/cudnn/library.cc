// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/library.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include "exec/libraries/loaded_library.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::size_t ruled_version(const char* rule, const char* key) {
  return static_cast<std::size_t>(libraries::rule_number(rule, key));
}

std::string version_refusal(std::size_t version) {
  const std::size_t oldest = ruled_version("cudnn.oldest");
  if (version >= oldest) return {};
  return fmt::format(
      "is version {}, expected {} or newer: older ones add to sums of dQ that nobody zeroed",
      version_text(version), version_text(oldest));
}

std::string length_refusal(std::size_t version, std::int64_t seq) {
  const std::size_t last = ruled_version("cudnn.whole_tiles", "last_code");
  const std::int64_t tile = libraries::rule_number("cudnn.whole_tiles", "tile");
  if (version > last || seq % tile == 0) return {};
  return fmt::format(
      "of version {} takes sequences of multiples of {} tokens, not {}: newer than {} takes any",
      version_text(version), tile, seq, version_text(last));
}

std::string compiler_refusal(const std::string& name) {
  // Never unloaded; what cuDNN loads by that name afterwards is the same.
  void* compiler = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (compiler == nullptr) {
    const std::string why = dlerror();
    compiler = dlopen((SHARDWRIGHT_NVRTC_FOLDER "/" + name).c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (compiler == nullptr) {
      return fmt::format(
          "has no engines without NVRTC ({}), expected it in a folder of the system "
          "or of LD_LIBRARY_PATH",
          why);
    }
  }
  // NVRTC looks for its builtins by name, too.
  const auto get_version = reinterpret_cast<int (*)(int*, int*)>(dlsym(compiler, "nvrtcVersion"));
  int major = 0, minor = 0;
  if (get_version == nullptr || get_version(&major, &minor) != 0) return {};
  const std::string why =
      libraries::why_without(compiler, fmt::format("libnvrtc-builtins.so.{}.{}", major, minor));
  if (why.empty()) return {};
  return fmt::format("has no engines without NVRTC's builtins ({}), expected them beside NVRTC",
                     why);
}

std::string engine_refusal(const std::string& part) {
  void* const library = dlopen(SHARDWRIGHT_CUDNN_FILE, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const std::string why = libraries::why_without(library, part);
  return why.empty() ? why : fmt::format("has no engines without a part of it ({})", why);
}

const std::string& library_refusal() {
  static const std::string refusal = [] {
    try {
      std::string why = version_refusal(cudnnGetVersion());
      if (why.empty()) why = engine_refusal("libcudnn_engines_runtime_compiled.so.9");
      if (!why.empty()) return why;
      return compiler_refusal(fmt::format("libnvrtc.so.{}", cudnnGetCudartVersion() / 1000));
    } catch (const Error& error) {
      return std::string("is not here: ") + error.what();
    }
  }();
  return refusal;
}

std::string library_name() {
  return "cuDNN " + version_text(cudnnGetVersion());
}

}  // namespace shardwright::exec::cudnn

// SPDX-License-Identifier: Apache-2.0
// Whether the cuDNN that the loader found can serve attention at all.
//
// The engines are compiled at run time by NVRTC, which cuDNN loads itself: without it, it offers no
// engine and does not say why. NVRTC is loaded here first, by this program's own search path, so
// that cuDNN finds it where a package carries it. Which releases are refused and why is in
// exec/libraries/rules.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace shardwright::exec::cudnn {

/// "9.19.0" of 91900.
std::string version_text(std::size_t version);
/// A release that a rule of cuDNN names, as cudnnGetVersion() has it.
std::size_t ruled_version(const char* rule, const char* key = "code");
/// Why a cuDNN of that version is not used, as the end of a sentence that begins with "cudnn";
/// empty when it is.
std::string version_refusal(std::size_t version);
/// Why one of that version does not take sequences of that many tokens.
std::string length_refusal(std::size_t version, std::int64_t seq);
/// Why one is not used where the compiler of that name, "libnvrtc.so.13", or its builtins cannot be
/// loaded.
std::string compiler_refusal(const std::string& name);
/// The same of the part of the loaded cuDNN that has the engines.
std::string engine_refusal(const std::string& part);
/// All of them, of the library and the compiler that it wants; asked once.
const std::string& library_refusal();
/// "cuDNN 9.19.0"
std::string library_name();

}  // namespace shardwright::exec::cudnn

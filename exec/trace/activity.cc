// SPDX-License-Identifier: Apache-2.0
#include "exec/trace/activity.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace shardwright::exec {
namespace {

// Ids of this project are marked, because other libraries push ids of their own.
constexpr std::uint64_t kMark = 0x5357;
constexpr int kMarkShift = 48;
constexpr int kRankShift = 28;
constexpr std::uint64_t kMostRanks = std::uint64_t{1} << (kMarkShift - kRankShift);
constexpr std::uint64_t kMostOps = std::uint64_t{1} << kRankShift;
constexpr std::size_t kMostNameLetters = 120;

void remove_all(std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

/// Where the argument list of a demangled function begins: the first parenthesis outside template
/// arguments.
std::size_t arguments_begin(const std::string& text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] == '(' && depth == 0) return i;
  }
  return text.size();
}

/// Where the name begins behind a return type: after the last space outside template arguments.
std::size_t name_begin(const std::string& text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] == ' ' && depth == 0) begin = i + 1;
  }
  return begin;
}

}  // namespace

std::uint64_t op_tag(const OpTag& tag) {
  return kMark << kMarkShift | static_cast<std::uint64_t>(tag.rank) % kMostRanks << kRankShift |
         static_cast<std::uint64_t>(tag.op) % kMostOps;
}

std::optional<OpTag> op_of_tag(std::uint64_t id) {
  if (id >> kMarkShift != kMark) return std::nullopt;
  return OpTag{static_cast<std::int32_t>(id >> kRankShift & (kMostRanks - 1)),
               static_cast<OpId>(id & (kMostOps - 1))};
}

bool is_nccl_kernel(const std::string& name) {
  return name.starts_with("ncclDevKernel_") || name.starts_with("ncclSymkDevKernel_") ||
         name.starts_with("ncclKernel_") || name.find("ncclDevKernel_") != std::string::npos;
}

std::string kernel_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? demangled.get() : mangled;
  for (const char* part : {"(anonymous namespace)::", "shardwright::", "kernels::", "cuda::"}) {
    remove_all(name, part);
  }
  name.resize(arguments_begin(name));
  name.erase(0, name_begin(name));
  if (name.size() > kMostNameLetters) name = name.substr(0, kMostNameLetters) + "...";
  return name;
}

std::string call_name(const std::string& name) {
  const std::size_t version = name.rfind("_v");
  const bool numbered = version != std::string::npos && version + 2 < name.size() &&
                        name.find_first_not_of("0123456789", version + 2) == std::string::npos;
  return numbered ? name.substr(0, version) : name;
}

}  // namespace shardwright::exec

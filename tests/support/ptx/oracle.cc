// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptx/oracle.h"

#include <cmath>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "tests/support/cuda_on_cpu/fake_cuda.h"
#include "tests/support/ptx/machine.h"

namespace ptx {
namespace {

using Memory = std::vector<std::vector<std::byte>>;

Memory copy_of(const std::vector<std::span<std::byte>>& regions) {
  Memory copy;
  for (const auto& region : regions) copy.emplace_back(region.begin(), region.end());
  return copy;
}

void put_back(const Memory& memory, const std::vector<std::span<std::byte>>& regions) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    std::copy(memory[i].begin(), memory[i].end(), regions[i].begin());
  }
}

template <class T>
T word_at(const std::byte* bytes, std::size_t at) {
  T word;
  std::memcpy(&word, bytes + at / sizeof(T) * sizeof(T), sizeof word);
  return word;
}

bool is_nan(std::uint16_t bf16) {
  return (bf16 & 0x7fffu) > 0x7f80u;
}
bool is_nan(std::uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}
bool is_nan(std::uint64_t bits) {
  return (bits & ~(std::uint64_t{1} << 63)) > 0x7ffull << 52;
}

template <class T>
bool both_nan(const std::byte* a, const std::byte* b, std::size_t at) {
  return is_nan(word_at<T>(a, at)) && is_nan(word_at<T>(b, at));
}

/// Where two memories differ first, and how; empty where they do not.
std::string difference(const std::vector<std::byte>& emulated, std::span<const std::byte> ptx) {
  if (std::memcmp(emulated.data(), ptx.data(), ptx.size()) == 0) return "";
  for (std::size_t at = 0; at < ptx.size(); ++at) {
    if (emulated[at] == ptx[at]) continue;
    const std::byte *a = emulated.data(), *b = ptx.data();
    const std::size_t left = ptx.size() - at;
    if (both_nan<std::uint16_t>(a, b, at) || (left >= 4 && both_nan<std::uint32_t>(a, b, at)) ||
        (left >= 8 && both_nan<std::uint64_t>(a, b, at))) {
      continue;
    }
    std::ostringstream out;
    out << "byte " << at << " of an array of " << ptx.size();
    if (left >= 4) {
      out << std::hex << ": 0x" << word_at<std::uint32_t>(a, at) << " as C++ and 0x"
          << word_at<std::uint32_t>(b, at) << " as PTX (" << std::setprecision(9)
          << word_at<float>(a, at) << ", " << word_at<float>(b, at) << ")";
    }
    return out.str();
  }
  return "";
}

}  // namespace

void Oracle::add(const std::string& text) {
  for (auto& [name, kernel] : parse(text)) {
    kernel.name = demangled(name);
    Known& known = kernels_[kernel.name];
    known = {std::move(kernel), {}};
    known.executed.resize(known.kernel.code.size());
  }
}

void Oracle::run(const cuda_on_cpu::Launch& launch) {
  const auto known = kernels_.find(function_at(launch.kernel));
  if (known == kernels_.end() || cuda_on_cpu::options().order_seed != 0) {
    return cuda_on_cpu::run(launch);
  }
  const auto regions = cuda_on_cpu::memory_of_tasks();
  const Memory before = copy_of(regions);
  cuda_on_cpu::run(launch);
  const Memory emulated = copy_of(regions);
  put_back(before, regions);
  ++launches_;
  try {
    const auto size = [](const dim3& v) { return Size3{v.x, v.y, v.z}; };
    ptx::run(
        known->second.kernel,
        {size(launch.grid), size(launch.block), launch.shared_bytes, launch.arguments, regions},
        known->second.executed);
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const std::string what = difference(emulated[i], regions[i]);
      if (!what.empty()) report_("kernel " + known->first + ": " + what);
    }
  } catch (const Failure& failure) {
    report_(failure.what());
  }
  put_back(emulated, regions);
}

Coverage Oracle::coverage() const {
  Coverage total;
  total.launches = launches_;
  total.kernels = kernels_.size();
  for (const auto& [name, known] : kernels_) {
    const auto& [kernel, executed] = known;
    bool any = false;
    total.opcodes.insert(kernel.opcodes.begin(), kernel.opcodes.end());
    total.instructions += kernel.code.size() - 1;  // the last one is not the compiler's
    for (std::size_t i = 0; i + 1 < kernel.code.size(); ++i) {
      if (!executed[i]) continue;
      any = true;
      ++total.instructions_run;
      total.opcodes_run.insert(kernel.opcodes[kernel.code[i].opcode]);
    }
    total.kernels_run += any;
    if (!any) total.not_run.push_back(name);
  }
  return total;
}

}  // namespace ptx

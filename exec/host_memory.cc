// SPDX-License-Identifier: Apache-2.0
#include "exec/host_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>
#include <string_view>

#include "sim/core/arena.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {
namespace {

class PageableMemory final : public Allocation {
 public:
  explicit PageableMemory(Bytes bytes)
      : data_(::operator new(static_cast<std::size_t>(bytes), kAlignment)) {}
  PageableMemory(const PageableMemory&) = delete;
  PageableMemory& operator=(const PageableMemory&) = delete;
  ~PageableMemory() override { ::operator delete(data_, kAlignment); }
  void* data() const override { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{kArenaAlignment};
  void* data_;
};

/// The number behind a word that begins a line of the file, or, without a word, that the file is.
std::optional<Bytes> number_in(const std::filesystem::path& path, std::string_view word = {}) {
  std::ifstream file(path);
  std::string name, number;
  while (file) {
    if (!word.empty() && !(file >> name)) break;
    if (!(file >> number)) break;
    if (name == word) return parse_int64(number);
    file.ignore(1 << 12, '\n');
  }
  return std::nullopt;
}

}  // namespace

std::optional<Bytes> host_memory_left(const std::filesystem::path& meminfo,
                                      const std::filesystem::path& group) {
  constexpr Bytes kKilobyte = 1024;
  std::optional<Bytes> left = number_in(meminfo, "MemAvailable:");
  if (left) *left = kKilobyte * (*left + number_in(meminfo, "SwapFree:").value_or(0));
  const auto most = number_in(group / "memory.max"), used = number_in(group / "memory.current");
  if (!most || !used) return left;
  // Files that were read are let go of first.
  const Bytes files = number_in(group / "memory.stat", "inactive_file").value_or(0);
  const Bytes of_group = std::max<Bytes>(0, *most - *used + files);
  return left ? std::min(*left, of_group) : of_group;
}

std::unique_ptr<Allocation> pageable_memory(Bytes bytes) {
  try {
    return std::make_unique<PageableMemory>(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("the machine refuses {} bytes of memory", bytes), ExitCode::kFailed);
  }
}

}  // namespace shardwright::exec

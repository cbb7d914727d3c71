// SPDX-License-Identifier: Apache-2.0
#include "exec/host_memory.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
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

namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const auto number = [&]() -> std::optional<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || value < 0 || value >= CPU_SETSIZE) return {};
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return value;
  };
  while (!text.empty()) {
    const std::optional<int> first = number();
    std::optional<int> last = first;
    if (first && text.starts_with('-')) {
      text.remove_prefix(1);
      last = number();
    }
    if (!first || !last || *last < *first) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',')) return {};
    text.remove_prefix(1);
  }
  return cpus;
}

std::vector<int> cpus_near(const std::string& pci_address, const std::filesystem::path& devices) {
  std::ifstream file(devices / lower(pci_address) / "local_cpulist");
  std::string line;
  if (!std::getline(file, line)) return {};
  return parse_cpu_list(line).value_or(std::vector<int>());
}

bool bind_this_thread(const std::vector<int>& cpus) {
  cpu_set_t allowed, wished;
  CPU_ZERO(&wished);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (const int cpu : cpus) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &wished);
  }
  return CPU_COUNT(&wished) > 0 && sched_setaffinity(0, sizeof wished, &wished) == 0;
}

}  // namespace shardwright::exec

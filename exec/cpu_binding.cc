// SPDX-License-Identifier: Apache-2.0
#include "exec/cpu_binding.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>

namespace shardwright::exec {
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

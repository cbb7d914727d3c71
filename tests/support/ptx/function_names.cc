// SPDX-License-Identifier: Apache-2.0
// Which kernel an address is: from the table of symbols in the program's own file, because kernels
// are local to their files and so in no table that is loaded.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "tests/support/ptx/oracle.h"

namespace ptx {
namespace {

template <class T>
T item(const std::string& file, std::size_t at) {
  T value{};
  if (at + sizeof(T) <= file.size()) std::memcpy(&value, &file[at], sizeof value);
  return value;
}

/// How far the program lies behind the addresses of its file.
std::size_t load_offset() {
  std::size_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<std::size_t*>(to) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &offset);
  return offset;
}

std::map<std::size_t, std::string> functions() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const auto header = item<Elf64_Ehdr>(file, 0);
  std::map<std::size_t, std::string> names;
  for (std::size_t s = 0; s < header.e_shnum; ++s) {
    const auto table = item<Elf64_Shdr>(file, header.e_shoff + s * sizeof(Elf64_Shdr));
    if (table.sh_type != SHT_SYMTAB) continue;
    const auto text = item<Elf64_Shdr>(file, header.e_shoff + table.sh_link * sizeof(Elf64_Shdr));
    for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = item<Elf64_Sym>(file, table.sh_offset + at);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      names[symbol.st_value] = file.c_str() + text.sh_offset + symbol.st_name;
    }
  }
  return names;
}

}  // namespace

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return text == nullptr ? name : text.get();
}

std::string function_at(const void* address) {
  static const std::map<std::size_t, std::string> all = functions();
  static const std::size_t offset = load_offset();
  const auto found = all.find(reinterpret_cast<std::size_t>(address) - offset);
  return found == all.end() ? "" : demangled(found->second);
}

}  // namespace ptx

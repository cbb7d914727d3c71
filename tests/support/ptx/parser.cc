// SPDX-License-Identifier: Apache-2.0
// Reads PTX: statements that end with a semicolon, labels, blocks in braces (nvcc writes inline
// assembly into such), directives with a dot. Names of registers are unique in a kernel but for
// those that a block declares, which the block writes before it reads them; so braces are skipped.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

const Operations& operations() {
  static const Operations table = [] {
    Operations all;
    add_integer_operations(all);
    add_float_operations(all);
    add_conversions(all);
    add_comparisons(all);
    add_moves(all);
    add_atomics_and_copies(all);
    add_warp_operations(all);
    add_matrix_operations(all);
    all["bra"] = all["bra.uni"] = {nullptr, Kind::kBranch};
    all["ret"] = all["exit"] = {nullptr, Kind::kReturn};
    all["bar.sync"] = {nullptr, Kind::kBarrier};
    return all;
  }();
  return table;
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::string without_comments(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comment = std::min(text.find("//", at), text.size());
    result.append(text, at, comment - at);
    at = std::min(text.find('\n', comment), text.size());
  }
  return result;
}

std::size_t up_to_multiple(std::size_t bytes, std::size_t of) {
  return (bytes + of - 1) / of * of;
}

template <class T>
std::optional<T> number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The bits of an integer, of 0f and eight digits, or of 0d and sixteen.
std::optional<std::uint64_t> constant(std::string_view text) {
  if (text.starts_with("0f") || text.starts_with("0F") || text.starts_with("0d") ||
      text.starts_with("0D") || text.starts_with("0x") || text.starts_with("0X")) {
    return number<std::uint64_t>(text.substr(2), 16);
  }
  if (const auto integer = number<std::int64_t>(text)) return static_cast<std::uint64_t>(*integer);
  return number<std::uint64_t>(text);
}

/// `.align 8 .b8 name[40]`, `.u64 name` and the like.
struct Variable {
  std::string name;
  std::size_t alignment = 1, bytes = 0;
};
Variable variable(std::string_view text) {
  Variable result;
  std::size_t element = 1;
  while (true) {
    text = trimmed(text);
    if (!text.starts_with('.')) break;
    const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
    const std::string_view word = text.substr(0, end);
    text = trimmed(text.substr(end));
    if (word == ".align") {
      const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
      result.alignment = number<std::size_t>(text.substr(0, digits)).value_or(1);
      text.remove_prefix(digits);
    } else if (const auto bits = number<std::size_t>(word.substr(2))) {
      element = *bits / 8;
    }
  }
  const std::size_t bracket = text.find('[');
  result.name = trimmed(text.substr(0, bracket));
  std::size_t count = 1;
  if (bracket != std::string_view::npos) {
    const std::size_t end = text.find(']', bracket);
    count = number<std::size_t>(text.substr(bracket + 1, end - bracket - 1)).value_or(0);
  }
  result.bytes = element * count;
  result.alignment = std::max(result.alignment, element);
  return result;
}

class KernelReader {
 public:
  explicit KernelReader(std::string name) { kernel_.name = std::move(name); }

  void parameters(std::string_view list);
  void dynamic_shared(const std::string& name) { dynamic_shared_ = name; }
  void statement(std::string_view text);
  void label(std::string_view name) { labels_[std::string(name)] = size(); }
  Kernel finish();

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure("kernel " + kernel_.name + ": " + what);
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(kernel_.code.size()); }
  void directive(std::string_view text);
  void operands(std::string_view text, Instruction& instruction);
  void operand(std::string_view text, Instruction& instruction, int& addresses);
  std::uint32_t row_of(std::string_view name);
  std::uint32_t new_row(std::string_view name) {
    return rows_.emplace(name, static_cast<std::uint32_t>(rows_.size())).first->second;
  }
  std::uint32_t opcode_index(const std::string& opcode);

  Kernel kernel_;
  std::string dynamic_shared_;
  std::map<std::string, std::uint64_t, std::less<>> symbols_;
  std::map<std::string, std::uint32_t, std::less<>> rows_;
  std::map<std::string, std::uint32_t, std::less<>> labels_;
  std::vector<std::pair<std::uint32_t, std::string>> branches_;
  std::vector<std::uint32_t> of_dynamic_shared_;  // indices of kernel_.filled
};

void KernelReader::parameters(std::string_view list) {
  while (!(list = trimmed(list)).empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const Variable found = variable(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    const std::size_t offset = up_to_multiple(kernel_.parameter_bytes, found.alignment);
    kernel_.parameters.push_back({offset, found.bytes});
    kernel_.parameter_bytes = offset + found.bytes;
    symbols_[found.name] = offset;
  }
}

void KernelReader::directive(std::string_view text) {
  const auto place = [&](std::string_view rest, std::size_t& total) {
    const Variable found = variable(rest);
    symbols_[found.name] = up_to_multiple(total, found.alignment);
    total = symbols_[found.name] + found.bytes;
  };
  if (text.starts_with(".shared")) {
    place(text.substr(7), kernel_.shared_bytes);
  } else if (text.starts_with(".local")) {
    place(text.substr(6), kernel_.local_bytes);
  } else if (!text.starts_with(".reg") && !text.starts_with(".pragma")) {
    fail("the directive '" + std::string(text) + "' is not known");
  }
}

std::uint32_t KernelReader::row_of(std::string_view name) {
  const auto known = rows_.find(name);
  if (known != rows_.end()) return known->second;
  const std::uint32_t row = new_row(name);
  if (name.starts_with('%')) {
    if (name.find('.') != std::string_view::npos || name == "%laneid") {
      kernel_.filled.push_back({row, 0, std::string(name)});
    }
  } else if (const auto value = constant(name)) {
    kernel_.filled.push_back({row, *value, ""});
  } else if (const auto symbol = symbols_.find(name); symbol != symbols_.end()) {
    kernel_.filled.push_back({row, symbol->second, ""});
  } else if (name == dynamic_shared_) {
    of_dynamic_shared_.push_back(static_cast<std::uint32_t>(kernel_.filled.size()));
    kernel_.filled.push_back({row, 0, ""});
  } else {
    fail("the operand '" + std::string(name) + "' is not known");
  }
  return row;
}

void KernelReader::operand(std::string_view text, Instruction& instruction, int& addresses) {
  text = trimmed(text);
  if (text.starts_with('[')) {
    text = trimmed(text.substr(1, text.size() - 2));
    const std::size_t plus = text.find('+');
    if (addresses == 2) fail("more than two addresses in an instruction");
    if (plus != std::string_view::npos) {
      const auto offset = number<std::int64_t>(text.substr(plus + 1));
      if (!offset) fail("the address '" + std::string(text) + "' is not known");
      instruction.offset[static_cast<std::size_t>(addresses)] = *offset;
      text = trimmed(text.substr(0, plus));
    }
    ++addresses;
  }
  if (instruction.rows == instruction.row.size()) fail("more operands than an instruction has");
  instruction.row[instruction.rows++] = row_of(text);
}

void KernelReader::operands(std::string_view text, Instruction& instruction) {
  int addresses = 0;
  bool in_braces = false;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == '{') in_braces = true;
    if (c == '}') in_braces = false;
    if (c == '{' || c == '}') {
      if (!trimmed(text.substr(begin, at - begin)).empty()) {
        operand(text.substr(begin, at - begin), instruction, addresses);
      }
      begin = at + 1;
    } else if (c == ',' || c == '|') {
      const std::string_view part = trimmed(text.substr(begin, at - begin));
      if (!part.empty()) operand(part, instruction, addresses);
      begin = at + 1;
      if (c == ',' && !in_braces && instruction.first_rows == 0) {
        instruction.first_rows = instruction.rows;
      }
    }
  }
}

std::uint32_t KernelReader::opcode_index(const std::string& opcode) {
  auto& all = kernel_.opcodes;
  const auto found = std::find(all.begin(), all.end(), opcode);
  if (found != all.end()) return static_cast<std::uint32_t>(found - all.begin());
  all.push_back(opcode);
  return static_cast<std::uint32_t>(all.size() - 1);
}

void KernelReader::statement(std::string_view text) {
  text = trimmed(text);
  if (text.empty()) return;
  if (text.starts_with('.')) return directive(text);
  Instruction instruction;
  if (text.starts_with('@')) {
    instruction.guarded = true;
    instruction.guard_negated = text.starts_with("@!");
    const std::size_t end = text.find_first_of(" \t");
    instruction.guard = row_of(
        text.substr(instruction.guard_negated ? 2 : 1, end - (instruction.guard_negated ? 2 : 1)));
    text = trimmed(text.substr(end));
  }
  const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
  const std::string opcode(text.substr(0, end));
  const std::string_view rest = trimmed(text.substr(end));
  instruction.opcode = opcode_index(opcode);
  if (!decode_access(opcode, instruction)) {
    const auto known = operations().find(opcode);
    if (known == operations().end()) fail("the PTX opcode '" + opcode + "' is not known");
    instruction.execute = known->second.execute;
    instruction.kind = known->second.kind;
  }
  if (instruction.kind == Kind::kBranch) {
    branches_.emplace_back(size(), rest);
  } else {
    operands(rest, instruction);
  }
  kernel_.code.push_back(instruction);
}

Kernel KernelReader::finish() {
  for (const auto& [at, name] : branches_) {
    const auto label = labels_.find(name);
    if (label == labels_.end()) fail("a branch to '" + name + "', which is not there");
    kernel_.code[at].target = label->second;
  }
  // A kernel may end without a return.
  Instruction last;
  last.kind = Kind::kReturn;
  last.opcode = opcode_index("ret");
  kernel_.code.push_back(last);
  kernel_.rows = static_cast<std::uint32_t>(rows_.size());
  kernel_.shared_bytes = up_to_multiple(kernel_.shared_bytes, 128);
  for (const std::uint32_t i : of_dynamic_shared_) kernel_.filled[i].value = kernel_.shared_bytes;
  return std::move(kernel_);
}

/// Where the brace that closes the one at `open` is.
std::size_t closing(const std::string& text, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    if (depth == 0) return at;
  }
  throw Failure("a brace of the PTX is never closed");
}

void read_body(std::string_view body, KernelReader& reader) {
  while (!(body = trimmed(body)).empty()) {
    if (body.front() == '{' || body.front() == '}') {
      body.remove_prefix(1);
      continue;
    }
    const std::size_t end = std::min(body.find(';'), body.size());
    const std::size_t colon = body.substr(0, end).find(':');
    if (body.front() == '$' && colon != std::string_view::npos) {
      reader.label(body.substr(0, colon));
      body.remove_prefix(colon + 1);
      continue;
    }
    reader.statement(body.substr(0, end));
    body.remove_prefix(std::min(end + 1, body.size()));
  }
}

}  // namespace

std::map<std::string, Kernel> parse(const std::string& source) {
  const std::string text = without_comments(source);
  std::string dynamic_shared;
  if (const std::size_t at = text.find(".extern .shared"); at != std::string::npos) {
    const std::size_t end = text.find(';', at);
    dynamic_shared = variable(std::string_view(text).substr(at + 15, end - at - 15)).name;
  }
  std::map<std::string, Kernel> kernels;
  for (std::size_t at = text.find(".entry "); at != std::string::npos;
       at = text.find(".entry ", at)) {
    const std::size_t open = text.find('(', at), close = text.find(')', open);
    const std::size_t begin = text.find('{', close), end = closing(text, begin);
    KernelReader reader{std::string(trimmed(std::string_view(text).substr(at + 7, open - at - 7)))};
    reader.dynamic_shared(dynamic_shared);
    std::string list = text.substr(open + 1, close - open - 1);
    for (std::size_t word = list.find(".param"); word != std::string::npos;
         word = list.find(".param")) {
      list.erase(word, 6);
    }
    reader.parameters(list);
    read_body(std::string_view(text).substr(begin + 1, end - begin - 1), reader);
    Kernel kernel = reader.finish();
    kernels[kernel.name] = std::move(kernel);
    at = end;
  }
  return kernels;
}

}  // namespace ptx

// SPDX-License-Identifier: Apache-2.0
#include "cli/memory/pickle.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

constexpr std::size_t kMostNodes = std::size_t{1} << 26;
constexpr std::size_t kMostKeys = 64;  // that are looked at

enum Opcode : unsigned char {
  kMarkOp = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kAppend = 'a',
  kAppends = 'e',
  kDictOp = 'd',
  kListOp = 'l',
  kSetItem = 's',
  kSetItems = 'u',
  kTupleOp = 't',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kMemoize = 0x94,
  kFrame = 0x95
};

/// What a person may have heard of; others go by their number.
std::string opcode_name(unsigned char op) {
  switch (op) {
    case 'c':
      return "GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 'P':
    case 'Q':
      return "PERSID";
    case 0x81:
    case 0x92:
      return "NEWOBJ";
    case 0x93:
      return "STACK_GLOBAL";
    default:
      return fmt::format("0x{:02x}", op);
  }
}

}  // namespace

class PickleParser {
 public:
  PickleParser(Pickle& pickle, const std::string& name)
      : bytes_(pickle.bytes_), nodes_(pickle.nodes_), name_(name) {}

  std::uint32_t run() {
    for (;;) {
      op_at_ = at_;
      const auto op = static_cast<unsigned char>(take(1)[0]);
      if (op == kStop) return top();
      step(op);
    }
  }

 private:
  using Kind = Pickle::Kind;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: byte {}: {}, expected a snapshot of torch.cuda.memory", name_,
                            op_at_, what));
  }
  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - at_) fail("the pickle ends too early");
    const std::string_view piece = std::string_view(bytes_).substr(at_, count);
    at_ += count;
    return piece;
  }
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const std::string_view piece = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(piece[i])) << (8 * i);
    return value;
  }
  std::uint32_t make(Kind kind) {
    if (nodes_.size() >= kMostNodes) fail("it holds too many objects");
    nodes_.emplace_back().kind = kind;
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  void push(std::uint32_t node) { stack_.push_back(node); }
  void push_integer(std::int64_t value) {
    const std::uint32_t node = make(Kind::kInteger);
    nodes_[node].integer = value;
    push(node);
  }
  void push_text(std::string_view text) {
    const std::uint32_t node = make(Kind::kText);
    nodes_[node].text = text;
    push(node);
  }
  std::uint32_t top() const {
    if (stack_.empty()) fail("the stack is empty");
    const std::uint32_t node = last_of(stack_, "the stack");
    if (nodes_[node].kind == Kind::kMark) fail("the stack is empty");
    return node;
  }
  std::uint32_t pop() {
    const std::uint32_t node = top();
    stack_.pop_back();
    return node;
  }
  /// What lies above the last mark, which goes too.
  std::vector<std::uint32_t> pop_to_mark() {
    std::size_t mark = stack_.size();
    while (mark > 0 && nodes_[stack_[mark - 1]].kind != Kind::kMark) --mark;
    if (mark == 0) fail("there is no mark");
    std::vector<std::uint32_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark),
                                     stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  std::vector<std::uint32_t>& items_of(Kind kind) {
    Pickle::Node& node = nodes_[top()];
    if (node.kind != kind) fail("something is added to what is no list or dictionary");
    return node.items;
  }
  void push_list(std::vector<std::uint32_t> items, Kind kind = Kind::kList) {
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a key has no value");
    const std::uint32_t node = make(kind);
    nodes_[node].items = std::move(items);
    push(node);
  }
  void push_tuple(std::size_t count) {
    std::vector<std::uint32_t> items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    push_list(std::move(items));
  }
  void add(std::vector<std::uint32_t> items, Kind kind) {
    if (kind == Kind::kDict && items.size() % 2 != 0) fail("a key has no value");
    std::vector<std::uint32_t>& to = items_of(kind);
    to.insert(to.end(), items.begin(), items.end());
  }
  void get(std::uint64_t id) {
    const auto known = memo_.find(id);
    if (known == memo_.end()) fail("an object is used before it is there");
    push(known->second);
  }

  void long1() {
    const std::size_t size = static_cast<std::size_t>(number(1));
    const std::string_view piece = take(size);
    if (size > 8) {
      // No address and no size is that large.
      push_integer(INT64_MAX);
      return;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(piece[i])) << (8 * i);
    if (size > 0 && size < 8 && (static_cast<unsigned char>(piece[size - 1]) & 0x80) != 0)
      value |= ~std::uint64_t{0} << (8 * size);
    push_integer(static_cast<std::int64_t>(value));
  }

  void real() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
    const std::uint32_t node = make(Kind::kFloat);
    std::memcpy(&nodes_[node].real, &bits, sizeof(bits));
    push(node);
  }

  void decimal() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == bytes_.npos) fail("the pickle ends too early");
    const std::string_view word = take(end - at_);
    take(1);
    if (word == "00" || word == "01") return push_integer(word == "01" ? 1 : 0);
    const auto value = parse_int64(word);
    if (!value) fail("a number is none");
    push_integer(*value);
  }

  void step(unsigned char op) {
    switch (op) {
      case kProto: {
        const std::uint64_t version = number(1);
        if (version > 5) fail(fmt::format("protocol {} is not known", version));
        return;
      }
      case kFrame:
        take(8);
        return;
      case kMarkOp:
        push(make(Kind::kMark));
        return;
      case kPop:
        stack_.empty() ? fail("the stack is empty") : stack_.pop_back();
        return;
      case kPopMark:
        pop_to_mark();
        return;
      case kDup:
        push(top());
        return;
      case kNone:
        push(make(Kind::kNone));
        return;
      case kNewTrue:
        push_integer(1);
        return;
      case kNewFalse:
        push_integer(0);
        return;
      case kInt:
        decimal();
        return;
      case kBinInt:
        push_integer(static_cast<std::int32_t>(number(4)));
        return;
      case kBinInt1:
        push_integer(static_cast<std::int64_t>(number(1)));
        return;
      case kBinInt2:
        push_integer(static_cast<std::int64_t>(number(2)));
        return;
      case kLong1:
        long1();
        return;
      case kBinFloat:
        real();
        return;
      default:
        structure(op);
    }
  }

  void structure(unsigned char op) {
    switch (op) {
      case kShortBinUnicode:
      case kShortBinBytes:
        push_text(take(number(1)));
        return;
      case kBinUnicode:
      case kBinBytes:
        push_text(take(number(4)));
        return;
      case kBinUnicode8:
        push_text(take(number(8)));
        return;
      case kEmptyList:
      case kEmptyTuple:
        push_list({});
        return;
      case kEmptyDict:
        push_list({}, Kind::kDict);
        return;
      case kListOp:
      case kTupleOp:
        push_list(pop_to_mark());
        return;
      case kDictOp:
        push_list(pop_to_mark(), Kind::kDict);
        return;
      case kTuple1:
        push_tuple(1);
        return;
      case kTuple2:
        push_tuple(2);
        return;
      case kTuple3:
        push_tuple(3);
        return;
      case kAppend: {
        const std::uint32_t value = pop();
        add({value}, Kind::kList);
        return;
      }
      case kAppends:
        add(pop_to_mark(), Kind::kList);
        return;
      case kSetItem: {
        const std::uint32_t value = pop(), key = pop();
        add({key, value}, Kind::kDict);
        return;
      }
      case kSetItems:
        add(pop_to_mark(), Kind::kDict);
        return;
      case kBinPut:
        memo_[number(1)] = top();
        return;
      case kLongBinPut:
        memo_[number(4)] = top();
        return;
      case kMemoize: {
        const std::uint64_t id = memo_.size();
        memo_[id] = top();
        return;
      }
      case kBinGet:
        get(number(1));
        return;
      case kLongBinGet:
        get(number(4));
        return;
      default:
        fail(fmt::format("the pickle's instruction {} is not one of data, and is not run",
                         opcode_name(op)));
    }
  }

  const std::string& bytes_;
  std::vector<Pickle::Node>& nodes_;
  const std::string& name_;
  std::size_t at_ = 0, op_at_ = 0;
  std::vector<std::uint32_t> stack_;
  std::unordered_map<std::uint64_t, std::uint32_t> memo_;
};

Pickle Pickle::parse(std::string bytes, const std::string& name) {
  Pickle pickle;
  pickle.bytes_ = std::move(bytes);
  // Texts are views of bytes_, which a short string would carry along when moved.
  pickle.bytes_.reserve(64);
  pickle.root_ = PickleParser(pickle, name).run();
  return pickle;
}

bool PickleValue::is_none() const {
  return pickle_->nodes_[node_].kind == Pickle::Kind::kNone;
}
bool PickleValue::is_list() const {
  return pickle_->nodes_[node_].kind == Pickle::Kind::kList;
}
std::size_t PickleValue::size() const {
  const Pickle::Node& node = pickle_->nodes_[node_];
  return node.kind == Pickle::Kind::kDict ? node.items.size() / 2 : node.items.size();
}

PickleValue PickleValue::at(std::size_t index) const {
  return {pickle_, pickle_->nodes_[node_].items.at(index)};
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  const Pickle::Node& node = pickle_->nodes_[node_];
  if (node.kind != Pickle::Kind::kDict) return std::nullopt;
  const std::size_t most = std::min(node.items.size(), 2 * kMostKeys);
  for (std::size_t i = 0; i + 1 < most; i += 2) {
    const Pickle::Node& name = pickle_->nodes_[node.items[i]];
    if (name.kind == Pickle::Kind::kText && name.text == key)
      return PickleValue(pickle_, node.items[i + 1]);
  }
  return std::nullopt;
}

std::optional<std::int64_t> PickleValue::integer() const {
  const Pickle::Node& node = pickle_->nodes_[node_];
  if (node.kind == Pickle::Kind::kInteger) return node.integer;
  if (node.kind == Pickle::Kind::kFloat) return exact_integer(node.real);
  return std::nullopt;
}

std::optional<std::string_view> PickleValue::text() const {
  const Pickle::Node& node = pickle_->nodes_[node_];
  if (node.kind != Pickle::Kind::kText) return std::nullopt;
  return node.text;
}

PickleWriter::PickleWriter() : bytes_("\x80\x02", 2) {}

PickleWriter& PickleWriter::begin_dict() {
  bytes_ += "}(";
  return *this;
}
PickleWriter& PickleWriter::end_dict() {
  bytes_ += 'u';
  return *this;
}
PickleWriter& PickleWriter::begin_list() {
  bytes_ += "](";
  return *this;
}
PickleWriter& PickleWriter::end_list() {
  bytes_ += 'e';
  return *this;
}

PickleWriter& PickleWriter::text_value(std::string_view text) {
  bytes_ += 'X';
  for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  bytes_ += text;
  return *this;
}

PickleWriter& PickleWriter::integer(std::int64_t value) {
  const bool small = value >= INT32_MIN && value <= INT32_MAX;
  bytes_ += small ? "J" : "\x8a\x08";
  const auto bits = static_cast<std::uint64_t>(value);
  for (int i = 0; i < (small ? 4 : 8); ++i) bytes_ += static_cast<char>((bits >> (8 * i)) & 0xff);
  return *this;
}

PickleWriter& PickleWriter::boolean(bool value) {
  bytes_ += value ? '\x88' : '\x89';
  return *this;
}

PickleWriter& PickleWriter::pair(std::int64_t first, std::int64_t second) {
  integer(first).integer(second);
  bytes_ += '\x86';
  return *this;
}

std::string PickleWriter::finish() {
  return std::move(bytes_) + ".";
}

}  // namespace shardwright::cli

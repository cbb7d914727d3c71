// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/csv.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"

namespace shardwright {
namespace {

constexpr std::size_t kMostColumns = 1000;

}  // namespace

/// Cuts the text into rows of fields, unquoting in place.
class CsvParser {
 public:
  explicit CsvParser(CsvTable& table) : table_(table), text_(table.text_) {}

  void parse() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    while (at_ < text_.size()) {
      if (skip_line_end()) continue;
      const std::size_t line = line_;
      const std::size_t before = table_.fields_.size();
      read_row();
      if (table_.columns_.empty()) {
        name_columns();
      } else {
        const std::size_t found = table_.fields_.size() - before;
        if (found != table_.columns_.size()) {
          fail(line, fmt::format("the row has {} fields, expected {} as in the header", found,
                                 table_.columns_.size()));
        }
        table_.lines_.push_back(line);
      }
    }
    if (table_.columns_.empty())
      fail(1, "the file is empty, expected a row that names the columns");
  }

 private:
  [[noreturn]] void fail(std::size_t line, std::string_view what) const {
    throw Error(fmt::format("{}, line {}: {}", table_.file_, line, what));
  }

  bool skip_line_end() {
    if (text_.compare(at_, 2, "\r\n") == 0) {
      at_ += 2;
    } else if (text_[at_] == '\n') {
      at_ += 1;
    } else {
      return false;
    }
    ++line_;
    return true;
  }

  void read_row() {
    while (true) {
      const bool quoted = at_ < text_.size() && text_[at_] == '"';
      table_.fields_.push_back(quoted ? read_quoted() : read_plain());
      if (at_ == text_.size() || skip_line_end()) return;
      if (text_[at_] != ',') {
        fail(line_, quoted ? "text follows a closing quote, expected a comma or the end of the line"
                           : "a quote, NUL or carriage return stands in a field without quotes");
      }
      ++at_;
    }
  }

  CsvTable::Field read_plain() {
    using namespace std::string_view_literals;
    const std::size_t begin = at_;
    at_ = std::min(text_.find_first_of(",\n\r\"\0"sv, at_), text_.size());
    return {begin, at_ - begin};
  }

  CsvTable::Field read_quoted() {
    const std::size_t opened_on = line_;
    const std::size_t begin = ++at_;
    std::size_t end = begin;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') {
        if (at_ == text_.size() || text_[at_] != '"') return {begin, end - begin};
        ++at_;
      }
      if (c == '\n') ++line_;
      text_[end++] = c;
    }
    fail(opened_on, "a quoted field is never closed, expected a quote before the end of the file");
  }

  void name_columns() {
    if (table_.fields_.size() > kMostColumns) {
      fail(1, fmt::format("there are {} columns, expected at most {}", table_.fields_.size(),
                          kMostColumns));
    }
    for (const CsvTable::Field& field : table_.fields_) {
      std::string name = text_.substr(field.begin, field.size);
      if (name.empty()) {
        fail(1, fmt::format("column {} has no name", table_.columns_.size() + 1));
      }
      if (table_.has_column(name)) fail(1, fmt::format("two columns are named \"{}\"", name));
      table_.columns_.push_back(std::move(name));
    }
    table_.fields_.clear();
  }

  CsvTable& table_;
  std::string& text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

CsvTable CsvTable::load(const std::filesystem::path& path, std::size_t max_bytes) {
  return parse(read_file(path, max_bytes), path.string());
}

CsvTable CsvTable::parse(std::string text, std::string name) {
  CsvTable table;
  table.file_ = std::move(name);
  table.text_ = std::move(text);
  CsvParser(table).parse();
  return table;
}

bool CsvTable::has_column(std::string_view name) const {
  return std::find(columns_.begin(), columns_.end(), name) != columns_.end();
}

std::size_t CsvTable::column(std::string_view name) const {
  const auto at = std::find(columns_.begin(), columns_.end(), name);
  if (at == columns_.end()) {
    throw Error(fmt::format("{}, line 1: there is no column \"{}\", found {}", file_, name,
                            fmt::join(columns_, ", ")));
  }
  return static_cast<std::size_t>(at - columns_.begin());
}

CsvRow CsvTable::operator[](std::size_t row) const {
  SHARDWRIGHT_CHECK(row < size(), "row {} of {}", row, size());
  return {this, row};
}

std::string_view CsvRow::text(std::string_view column) const {
  return table_->field(row_, table_->column(column));
}

void CsvRow::fail(std::string_view column, std::string_view accepted) const {
  const std::string_view found = text(column);
  throw Error(fmt::format(
      "{}, line {}, column {}: found {}, expected {}", table_->file_, line(), column,
      found.empty() ? "nothing" : fmt::format("\"{}\"", found.substr(0, 60)), accepted));
}

template <typename T>
std::optional<T> CsvRow::find(std::string_view column) const {
  const std::string_view field = text(column);
  if (field.empty()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    return std::string(field);
  } else if constexpr (std::is_same_v<T, double>) {
    const std::optional<double> value = parse_double(field);
    if (!value) fail(column, "a number");
    return value;
  } else {
    const std::optional<std::int64_t> value = parse_int64(field);
    if (!value || !std::in_range<T>(*value)) fail(column, "an integer");
    return static_cast<T>(*value);
  }
}

template <typename T>
T CsvRow::require(std::string_view column) const {
  std::optional<T> value = find<T>(column);
  if (!value) {
    constexpr bool is_text = std::is_same_v<T, std::string>;
    fail(column, is_text ? "a value" : std::is_same_v<T, double> ? "a number" : "an integer");
  }
  return std::move(*value);
}

#define SHARDWRIGHT_CSV_KIND(T)                       \
  template T CsvRow::require(std::string_view) const; \
  template std::optional<T> CsvRow::find(std::string_view) const;
SHARDWRIGHT_CSV_KIND(int)
SHARDWRIGHT_CSV_KIND(std::int64_t)
SHARDWRIGHT_CSV_KIND(double)
SHARDWRIGHT_CSV_KIND(std::string)

}  // namespace shardwright

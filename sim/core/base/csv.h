// SPDX-License-Identifier: Apache-2.0
// A small, strict reader of comma-separated tables.
//
// The first row names the columns; values are looked up by name. Fields may be quoted, with a quote
// inside written twice, and may then hold commas and line ends. CRLF and LF, a byte-order mark and
// blank lines are accepted; ragged rows, repeated column names, stray quotes and numbers with
// anything behind them are errors that name file, line and column. An empty field means "not
// given". No type guessing, no comments, no other separators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

class CsvRow;

/// A whole table in memory. Rows are views into it and live as long as it stays where it is.
class CsvTable {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

  static CsvTable load(const std::filesystem::path& path, std::size_t max_bytes = kMaxBytes);
  /// As load, for text in memory; `name` stands for the file in errors.
  static CsvTable parse(std::string text, std::string name);

  const std::string& file() const { return file_; }
  const std::vector<std::string>& columns() const { return columns_; }
  bool has_column(std::string_view name) const;
  /// The place of a column; throws Error that lists the columns there are.
  std::size_t column(std::string_view name) const;

  std::size_t size() const { return lines_.size(); }
  CsvRow operator[](std::size_t row) const;

 private:
  friend class CsvRow;
  friend class CsvParser;
  struct Field {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  std::string_view field(std::size_t row, std::size_t column) const {
    const Field& at = fields_[row * columns_.size() + column];
    return std::string_view(text_).substr(at.begin, at.size);
  }

  std::string file_;
  std::string text_;  // quoted fields are unquoted in place: they only get shorter
  std::vector<std::string> columns_;
  std::vector<Field> fields_;  // row after row
  std::vector<std::size_t> lines_;
};

/// One row. T is one of int, int64_t, double, std::string.
class CsvRow {
 public:
  /// The field as it stands, "" when empty. Throws Error only for a column that is not there.
  std::string_view text(std::string_view column) const;
  /// The field as T; throws Error when it is empty or not a T (see parse_number.h for numbers).
  template <typename T>
  T require(std::string_view column) const;
  /// The field as T, or none when it is empty; throws Error when it is there and not a T.
  template <typename T>
  std::optional<T> find(std::string_view column) const;
  template <typename T>
  T optional(std::string_view column, T fallback) const {
    return find<T>(column).value_or(std::move(fallback));
  }

  /// Line in the file where the row begins, from 1.
  std::size_t line() const { return table_->lines_[row_]; }
  /// Throws Error: "FILE, line N, column NAME: found VALUE, expected ACCEPTED".
  [[noreturn]] void fail(std::string_view column, std::string_view accepted) const;

 private:
  friend class CsvTable;
  CsvRow(const CsvTable* table, std::size_t row) : table_(table), row_(row) {}

  const CsvTable* table_;
  std::size_t row_;
};

}  // namespace shardwright

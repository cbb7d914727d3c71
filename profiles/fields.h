// SPDX-License-Identifier: Apache-2.0
// The fields of a profile, described once.
//
// A Field says where a value is (dotted path), what it means, its unit, what is accepted and which
// variable holds it. Each struct of a profile has one describe() function that adds its fields to a
// FieldList; loading a data file, `--set KEY=VALUE`, `inspect` and `--json` all walk that list, so
// a field that one of them knows is known to all. A FieldList points into the structs it was made
// from: build it, use it, drop it.
//
// In data files a value is {"value": .., "unit": .., "source": .., "confidence": .., "date": ..}
// or, in a user's own file, just the value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "profiles/gpu_params.h"
#include "sim/core/base/json_file.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

using FieldTarget = std::variant<double*, std::int64_t*, int*, bool*, std::string*,
                                 std::vector<double>*, std::vector<std::string>*, MemoryManager*>;

/// Whether a file without a base must give the value.
enum class Need { kRequired, kOptional };

/// What is believed of a value before anything is measured: such a value is one that calibration
/// can move (sim/calibrate/group_problem.h).
struct Belief {
  CostGroup group = CostGroup::kProducts;
  /// A standard deviation of the logarithm: what the value differs by between GPUs of one
  /// generation and their stacks. 0: calibration leaves the value alone.
  double spread = 0;
  /// Where measurements cannot tell two values apart, the one of the higher rank stays as it is:
  /// higher ranks show in fewer shapes.
  int rank = 0;
  /// Others are given in terms of it, as a share of a peak is: where it is frozen they are what
  /// they are beside it, and uncertainty about it is none about them.
  bool relative = false;
};

struct Field {
  std::string path;  // "host.step_s"
  std::string_view unit;
  std::string_view meaning;
  FieldTarget target;
  NumberRange<double> accepted;  // of a number, or of each number of a list
  Need need = Need::kRequired;
  Belief belief{};
  int element = -1;  // of the array that a file has in place of the group
  const std::vector<std::string>* words = nullptr;  // that are accepted; none: all

  Field& believed(CostGroup group, double spread, int rank = 0, bool relative = false) {
    belief = {group, spread, rank, relative};
    return *this;
  }
  /// `accepted_words` outlives the field.
  Field& one_of(const std::vector<std::string>& accepted_words) {
    words = &accepted_words;
    return *this;
  }
};

class FieldList {
 public:
  /// Adds a field to the group that is open.
  Field& add(std::string_view name, FieldTarget target, std::string_view unit,
             std::string_view meaning, NumberRange<double> accepted = {},
             Need need = Need::kRequired) {
    return fields_.emplace_back(
        Field{prefix_ + std::string(name), unit, meaning, target, accepted, need});
  }

  /// Opens the group `name` while `body` adds to it: paths begin with "name.".
  template <typename Body>
  void group(std::string_view name, Body body) {
    const std::size_t length = prefix_.size();
    prefix_ += name;
    prefix_ += '.';
    body();
    prefix_.resize(length);
  }

  const std::vector<Field>& fields() const& { return fields_; }
  std::vector<Field> fields() && { return std::move(fields_); }  // safe in a range-for
  const Field* find(std::string_view path) const&;
  const Field* find(std::string_view path) && = delete;
  bool has_group(std::string_view path) const;
  std::vector<std::string> paths() const;

 private:
  std::string prefix_;
  std::vector<Field> fields_;
};

/// Reads the fields out of the object `root`. Keys that are neither fields, groups nor in `others`
/// are errors, as are required fields that are missing unless `has_base`. An origin found in the
/// file replaces what `origins` holds for the path; a plain value is sourced to the file itself.
void read_fields(const JsonReader& root, const FieldList& fields,
                 const std::vector<std::string_view>& others, bool has_base, Origins& origins);

/// Reads an object of plain values that has just these fields (gpu_cost.json).
void read_values(const JsonReader& object, const FieldList& fields);

/// Reads the value of `key` (wrapped or plain) into one field, as read_fields does.
Origin read_field(const JsonReader& parent, std::string_view key, const Field& field);

/// Sets a field from text. Throws Error: "WHERE: PATH is 'TEXT', expected ACCEPTED".
void set_field(const Field& field, std::string_view text, std::string_view where);

/// The value as JSON text: numbers in the shortest form that reads back the same.
std::string json_text(const Field& field);

/// The value as set_field reads it.
std::string set_text(const Field& field);

/// What set_field accepts, in words: "a number from 0 to 1 (byte/s)".
std::string accepted_text(const Field& field);

/// The fields as the body of a data file, nested and with origins: an object in JSON text whose
/// first members are `head` (already JSON text, without braces, may be empty). Optional fields that
/// nobody gave are left out.
std::string write_fields(const FieldList& fields, const Origins& origins, const std::string& head);

std::string_view name_of(MemoryManager manager);

}  // namespace shardwright::profiles

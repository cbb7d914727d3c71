// SPDX-License-Identifier: Apache-2.0
// Software stacks as data: profiles/data/stacks/*.json and users' own files of the same schema.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/fields.h"
#include "profiles/gpu_params.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

class FieldList;

struct StackFile {
  Stack stack;
  /// Of a preset: how the ledger's column `software` begins for runs of it; "NeMo from 2026-06" for
  /// what names that month or a later one, too; '|' divides several. Empty elsewhere.
  std::string software;
  Origins origins;  // by path within the file: "norm.forward_bytes"
};

/// The fields of a stack: kernels per operation, optimizer, host, copies and memory management.
void describe(FieldList& fields, Stack& stack);

/// `name_or_path` as in data_file.h. Throws Error naming file, path, value and what is accepted.
StackFile load_stack(const std::string& name_or_path, const std::filesystem::path& from = {});
StackFile parse_stack(std::string_view text, const std::string& name);

/// The preset of stack `family` whose `software` tells most of the text, else `family` itself: one
/// that ships, or a preset beside the ledger (published/presets).
StackFile load_preset(const std::string& family, std::string_view software);

/// The file's own schema with every value and its source; load_stack reads it back.
std::string to_json(const StackFile& file);

// What numbers in a framework's file may be.

inline const NumberRange<double> kBytesPerElement = between(0.0, 1e6);
inline const NumberRange<double> kLaunches = between(0.0, 10000.0);
inline const NumberRange<double> kUpToAnHour = between(0.0, 3600.0);

// The group `parallel` of a stack's file: what its framework does in model-parallel plans.

/// Into the group that is open. Each may be left out of a file: then it is as in the struct.
void describe(FieldList& fields, ParallelSoftware& parallel);

// When a piece of software was released, by what a table calls it.

/// The year, month and day that a release names ("torchtitan before 2024-06-12", "NeMo 26.04.01",
/// "2025"), as far as it does; empty where it names none.
std::vector<int> release_date(std::string_view release);

}  // namespace shardwright::profiles

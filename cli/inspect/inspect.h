// SPDX-License-Identifier: Apache-2.0
// What `shardwright inspect KIND NAME` and its lists print on stdout. All throw Error for what is
// not found, or is no file of the kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/render/text/terminal.h"

namespace shardwright::cli {

enum class Form : std::uint8_t {
  kText,  // words and tables for people
  kJson   // one document
};

/// Sizes in words, parameters by place, operations and bytes per token of sequences of
/// `asked_seq_len`, else of the usual length.
std::string inspect_model(const std::string& name, std::optional<std::int64_t> asked_seq_len,
                          Form form, const Terminal& out);
std::string list_models(Form form, const Terminal& out);

/// Every value with its unit, source and confidence. As JSON the document is the data file itself,
/// so that it can be edited and given back as a path.
std::string inspect_cluster(const std::string& name, Form form, const Terminal& out);
std::string inspect_gpu(const std::string& name, Form form, const Terminal& out);
std::string inspect_stack(const std::string& name, Form form, const Terminal& out);
std::string list_clusters(Form form, const Terminal& out);
std::string list_gpus(Form form, const Terminal& out);
std::string list_stacks(Form form, const Terminal& out);

/// `inspect profile`: provenance, sources, errors by group, and the values that calibration moved
/// with their intervals; of a profile without a calibration, that it has none.
std::string inspect_calibration(const std::string& name, Form form, const Terminal& out);

/// What a plan file says to do, and what was predicted for it.
std::string inspect_plan(const std::string& path, Form form, const Terminal& out);

/// Every setting of a run with its value and where it comes from: the file, the environment, the
/// plan or a default.
std::string inspect_run(const std::string& path, Form form, const Terminal& out);

/// What is in a checkpoint, after its checksums were checked.
std::string inspect_checkpoint(const std::string& path, Form form, const Terminal& out);

}  // namespace shardwright::cli

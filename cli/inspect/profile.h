// SPDX-License-Identifier: Apache-2.0
// `shardwright inspect cluster|gpu|stack NAME` and the lists `inspect clusters|gpus|stacks`: every
// value with its unit, source and confidence. As JSON the document is the data file itself, so
// that it can be edited and given back as a path.
#pragma once

#include <string>

#include "cli/inspect/form.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// What to print on stdout. `name` is a shipped name or a path; throws Error for others.
std::string inspect_cluster(const std::string& name, Form form, const Terminal& out);
std::string inspect_gpu(const std::string& name, Form form, const Terminal& out);
std::string inspect_stack(const std::string& name, Form form, const Terminal& out);

std::string list_clusters(Form form, const Terminal& out);
std::string list_gpus(Form form, const Terminal& out);
std::string list_stacks(Form form, const Terminal& out);

}  // namespace shardwright::cli

// SPDX-License-Identifier: Apache-2.0
// `shardwright inspect model NAME|PATH` and the list `inspect models`: sizes in words, parameters
// by place, operations and bytes per token.
#pragma once

#include <cstdint>
#include <string>

#include "cli/inspect/form.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// What to print on stdout; operations per token are for sequences of `seq_len`. Throws Error for a
/// model that is not found or refused.
std::string inspect_model(const std::string& name, std::int64_t seq_len, Form form,
                          const Terminal& out);

/// Every built-in model.
std::string list_models(Form form, const Terminal& out);

}  // namespace shardwright::cli

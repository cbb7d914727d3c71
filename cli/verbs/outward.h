// SPDX-License-Identifier: Apache-2.0
// The verbs that read and write what other programs have: catalogs of prices, settings of trainers,
// schedulers, assistants, PyTorch's snapshots.
#pragma once

#include <memory>

#include "cli/verbs/verb.h"

/// A function of a file that starts processes, which a page in a browser cannot: there it is null.
#ifdef __EMSCRIPTEN__
#define SHARDWRIGHT_WITH_PROCESSES(function) nullptr
#else
#define SHARDWRIGHT_WITH_PROCESSES(function) function
#endif

namespace shardwright::cli {

std::unique_ptr<Verb> make_kit_verb();
std::unique_ptr<Verb> make_import_config_verb();
std::unique_ptr<Verb> make_import_memory_verb();
std::unique_ptr<Verb> make_prices_verb();
std::unique_ptr<Verb> make_mcp_verb();

}  // namespace shardwright::cli

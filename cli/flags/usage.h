// Turns CLI11's parse errors into the project's: one sentence, the flag and value named, exit
// code 2.
#pragma once

#include "sim/core/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace shardwright::cli {

/// `app` is the root after the failed parse; what it could not place decides the sentence.
Error usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace shardwright::cli

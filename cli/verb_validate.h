// `shardwright validate`: predictions against published measurements.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_validate_verb();

}  // namespace shardwright::cli

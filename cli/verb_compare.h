// `shardwright compare`: a predicted step against a measured one.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_compare_verb();

}  // namespace shardwright::cli

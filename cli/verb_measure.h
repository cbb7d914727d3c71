// `shardwright measure`: times a model's operations on this machine and writes a profile of it.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_measure_verb();

}  // namespace shardwright::cli

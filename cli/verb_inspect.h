// `shardwright inspect KIND [NAME]`: a model, plan, cluster, gpu or stack in words; the plural
// lists what ships. A new kind is one line in the table of verb_inspect.cc.
#pragma once

#include <memory>

#include "cli/verb.h"

namespace shardwright::cli {

std::unique_ptr<Verb> make_inspect_verb();

}  // namespace shardwright::cli

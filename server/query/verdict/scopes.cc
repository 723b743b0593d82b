// Which modules ran, as possible inputs of those that follow.
#include <algorithm>
#include <string_view>

#include "server/query/settings/dotted.h"
#include "server/query/verdict/explain.h"

namespace statcollect::query {

// The newest output of each module around it, too.
void Explainer::NoteOutput(Pass& pass, std::string_view module, const Child& output) {
  for (std::string_view at = module; !at.empty(); at = ParentOf(at)) {
    Scope& scope = pass.scopes[ParentOf(at)];
    const Child* const known = scope.Find(at);
    Child child = output;
    child.module = at;
    child.own = at == module;
    if (!child.own) child.most = child.inherited;
    if (known != nullptr && !child.own && !known->own)
      child.most = std::max(child.most, known->most);
    scope.Put(child);
  }
}

// The largest difference of what ran beside the module: where one's output is multiplied by the
// other's, as in a gate, the gradient of one is computed from the other.
double Explainer::OfSiblings(const Pass& pass, std::string_view module) {
  const std::string_view parent = ParentOf(module);
  const auto found = pass.scopes.find(parent);
  return parent.empty() || found == pass.scopes.end() ? 0 : found->second.Largest();
}

const Explainer::Child* Explainer::Scope::Find(std::string_view module) const {
  const auto found = by_module_.find(module);
  return found == by_module_.end() ? nullptr : &*found->second;
}

void Explainer::Scope::Put(const Child& child) {
  largest_.reset();
  const auto [at, added] = by_module_.try_emplace(child.module);
  if (added) {
    at->second = children_.insert(children_.end(), child);
  } else {
    children_.splice(children_.end(), children_, at->second);
    *at->second = child;
  }
}

double Explainer::Scope::Largest() const {
  if (!largest_) {
    largest_ = 0;
    for (const Child& child : children_)
      largest_ = std::max(*largest_, child.own ? child.inherited : child.most);
  }
  return *largest_;
}

}  // namespace statcollect::query

#include "server/access/current.h"

namespace statcollect::access {
namespace {

thread_local const Principal* current_principal = nullptr;

}  // namespace

const Principal& CurrentPrincipal() {
  static const auto* nobody = new Principal();
  return current_principal != nullptr ? *current_principal : *nobody;
}

PrincipalScope::PrincipalScope(const Principal& principal) : before_(current_principal) {
  current_principal = &principal;
}
PrincipalScope::~PrincipalScope() { current_principal = before_; }

}  // namespace statcollect::access

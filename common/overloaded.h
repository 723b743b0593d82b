// One lambda for each type: for std::visit and ForEachKind.
#ifndef STATCOLLECT_COMMON_OVERLOADED_H_
#define STATCOLLECT_COMMON_OVERLOADED_H_

namespace statcollect {

template <typename... Calls>
struct Overloaded : Calls... {
  using Calls::operator()...;
};
template <typename... Calls>
Overloaded(Calls...) -> Overloaded<Calls...>;  // clang before 17 does not find it by itself

}  // namespace statcollect

#endif  // STATCOLLECT_COMMON_OVERLOADED_H_

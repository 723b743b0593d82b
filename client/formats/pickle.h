// Reads Python's pickles as data. Nothing is imported or called: a class or function that one names
// stays a name, and what it would be called with stays a list, so that code in a pickle never runs.
#ifndef STATCOLLECT_CLIENT_FORMATS_PICKLE_H_
#define STATCOLLECT_CLIENT_FORMATS_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace statcollect::client::formats {

inline constexpr std::size_t kPickleBytesMax = std::size_t{64} << 20;

class Pickle {
 public:
  using Id = std::uint32_t;  // of a value; may be reached on several ways, or contain itself

  enum class Type {
    kNone,
    kBool,     // integer: 0 or 1
    kInteger,  // beyond 64 bits: kOther
    kNumber,
    kText,        // str or bytes
    kList,        // list, tuple or set
    kDict,        // items: key, value, key, value, ...
    kName,        // text: "torch._utils._rebuild_tensor_v2"
    kPersistent,  // items: what its writer keeps elsewhere
    kCall,        // items: what would be called, its arguments
    kOther,
  };
  struct Value {
    Type type = Type::kNone;
    std::int64_t integer = 0;
    double number = 0;
    std::string text;
    std::vector<Id> items;
  };

  // kInvalidArgument, without the file's name: cut, damaged, of a protocol before 2, or beyond
  // kPickleBytesMax.
  static Result<Pickle> Read(std::string_view bytes);

  const Value& root() const { return values_[root_]; }
  const Value& operator[](Id id) const { return values_[id]; }
  // Of a dictionary, by a text; null: there is none.
  const Value* Find(const Value& dictionary, std::string_view key) const;
  // "torch._utils._rebuild_tensor_v2" of a call or a name, otherwise "int", "dict" or the like.
  std::string NameOf(const Value& value) const;

 private:
  friend class PickleReader;

  std::vector<Value> values_;
  Id root_ = 0;
};

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_PICKLE_H_

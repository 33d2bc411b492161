# Finds ONNX Runtime: a release (a folder with include/ and lib/), Debian's libonnxruntime-dev, or the library in the Python
# wheel with headers of either. Creates the target T2r::onnxruntime.
#
#   T2R_ONNXRUNTIME_ROOT     a folder to look in first: an unpacked release, or an unpacked Debian package's usr/
#   T2R_ONNXRUNTIME_LIBRARY  the library itself, as in .../onnxruntime/capi/libonnxruntime.so.1.31.1
#
# The headers may be older than the library, but not newer.
set(T2R_ONNXRUNTIME_ROOT "" CACHE PATH "a folder with ONNX Runtime's include/ and lib/")
set(T2R_ONNXRUNTIME_LIBRARY "" CACHE FILEPATH "ONNX Runtime's library, as in the Python wheel")

find_path(T2R_ONNXRUNTIME_INCLUDE onnxruntime_cxx_api.h
          HINTS ${T2R_ONNXRUNTIME_ROOT}
          PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session)
if(T2R_ONNXRUNTIME_LIBRARY)
  set(T2R_ONNXRUNTIME_FOUND_LIBRARY ${T2R_ONNXRUNTIME_LIBRARY})
else()
  find_library(T2R_ONNXRUNTIME_FOUND_LIBRARY onnxruntime HINTS ${T2R_ONNXRUNTIME_ROOT}
               PATH_SUFFIXES lib lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
mark_as_advanced(T2R_ONNXRUNTIME_INCLUDE T2R_ONNXRUNTIME_FOUND_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  T2rOnnxRuntime REQUIRED_VARS T2R_ONNXRUNTIME_FOUND_LIBRARY T2R_ONNXRUNTIME_INCLUDE
  REASON_FAILURE_MESSAGE "set T2R_ONNXRUNTIME_ROOT to an unpacked release, or T2R_ONNXRUNTIME_LIBRARY to the wheel's library")

if(T2rOnnxRuntime_FOUND AND NOT TARGET T2r::onnxruntime)
  set(library ${T2R_ONNXRUNTIME_FOUND_LIBRARY})
  get_filename_component(file ${library} REALPATH)
  if(NOT library MATCHES "^/(usr/)?lib" AND file MATCHES "\\.so(\\.[0-9]+)(\\.[0-9]+)?[0-9.]*$")
    # the wheel has only the file; the loader and the linker need its soname and its short name. A release has them, but the
    # library's path in the build must not depend on the release's. Debian's soname has the minor version.
    set(links ${CMAKE_BINARY_DIR}/onnxruntime)
    file(MAKE_DIRECTORY ${links})
    foreach(version "" "${CMAKE_MATCH_1}" "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
      file(CREATE_LINK ${file} ${links}/libonnxruntime.so${version} SYMBOLIC)
    endforeach()
    set(library ${links}/libonnxruntime.so)
  elseif(library MATCHES "\\.dll$")
    # the wheel has no import library; libt2r calls one function by name
    set(links ${CMAKE_BINARY_DIR}/onnxruntime)
    set(library ${links}/onnxruntime.lib)
    file(WRITE ${links}/onnxruntime.def "LIBRARY onnxruntime.dll\nEXPORTS\nOrtGetApiBase\n")
    execute_process(COMMAND ${CMAKE_DLLTOOL} -m i386:x86-64 -d ${links}/onnxruntime.def -l ${library} COMMAND_ERROR_IS_FATAL ANY)
  endif()
  set(T2R_ONNXRUNTIME_LINKED ${library})
  add_library(T2r::onnxruntime SHARED IMPORTED)
  if(WIN32)
    set_target_properties(T2r::onnxruntime PROPERTIES IMPORTED_IMPLIB ${library})
  else()
    set_target_properties(T2r::onnxruntime PROPERTIES IMPORTED_LOCATION ${library})
  endif()
  set_target_properties(T2r::onnxruntime PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${T2R_ONNXRUNTIME_INCLUDE}
                                                    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${T2R_ONNXRUNTIME_INCLUDE})
  get_filename_component(T2R_ONNXRUNTIME_RPATH ${library} DIRECTORY)
endif()

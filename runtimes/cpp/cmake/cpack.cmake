# Read by cpack for each form: a library that Debian has too lies in our package, so none of it is where Debian's own are.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /opt/t2r)
endif()

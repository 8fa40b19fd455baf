-- Copy a database. {copy}, {template}: names, quoted.
-- No index. Locking: no session may be connected to the template.
CREATE DATABASE {copy} TEMPLATE {template}
